"""The admissions that the service has made, each for a token of the hub, and their end. Knows no network."""

from __future__ import annotations

from dataclasses import dataclass, field

from djinn_jupyter.hub.persons import person_of
from djinn_jupyter.wire.keys import KeyFolder, PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """A key that is admitted for a token."""

    user: str
    public: PublicKey = field(repr=False)
    until: float  # seconds since the epoch


class Loans:
    """The keys of tokens. A key is admitted as long as one token has it; all of them end by themselves `seconds` after
    their last renewal, also when this process has ended."""

    def __init__(self, keys: KeyFolder, seconds: float) -> None:
        self._keys, self.seconds = keys, seconds
        self._lent: dict[str, Lent] = {}  # by token

    def lend(self, token: str, user: str, public: PublicKey) -> str:
        """Admit a key for a token, in the place of another that the token had, and return the person's name.
        UsageError where the person or the key is admitted otherwise."""
        person, until = person_of(user), self._keys.now() + self.seconds
        self._keys.lend(public, person, until)
        before = self._lent.get(token)
        self._lent[token] = Lent(user=user, public=public, until=until)
        if before is not None:
            self._end(before)
        return person

    def take_back(self, token: str) -> None:
        """End what is admitted for a token, at once."""
        lent = self._lent.pop(token, None)
        if lent is not None:
            self._end(lent)

    def lent(self) -> dict[str, Lent]:
        """Return what is admitted now, by its token. What has ended is forgotten, and its files are removed."""
        self._keys.clear_ended()
        self._lent = {token: one for token, one in self._lent.items() if one.until > self._keys.now()}
        return dict(self._lent)

    def _end(self, lent: Lent) -> None:
        if all((one.user, one.public) != (lent.user, lent.public) for one in self._lent.values()):
            self._keys.take_back(lent.public, person_of(lent.user))
