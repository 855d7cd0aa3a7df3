"""The cases of the property that no request harms: every type from the wire's own list, with any values, of a session
in any state. The caller carries them to an engine: in process, or over a socket."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from hypothesis import strategies as st

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import codec, kinds
from djinn_jupyter.wire import requests as ask
from tests.wire import values
from tests.wire.values import Quality

# `closed`: stopped, and closed before the request is looked at; `cut short`: empty, and closed once it is worked on.
State = Literal["missing", "closed", "running", "away", "stopped", "empty", "cut short"]
STATES: Final[tuple[State, ...]] = ("missing", "closed", "running", "away", "empty", "cut short", "stopped")
QUALITIES: Final[tuple[Quality, ...]] = ("ordinary", "extreme", "wrong")
KINDS: Final[tuple[type, ...]] = kinds.known().requests
OF_A_SESSION: Final = [kind for kind in KINDS if issubclass(kind, ask.SessionRequest)]


@dataclass(frozen=True, slots=True)
class Case:
    """A request of the session `name`, as fields that may be wrong."""

    kind: type
    fields: dict[str, Any]
    name: str

    @property
    def whole(self) -> dict[str, Any]:
        return {**self.fields, **({"session": self.name} if self.kind in OF_A_SESSION else {})}

    @property
    def request(self) -> Any:
        """The request, or None where the class itself refuses the fields."""
        try:
            return self.kind(**self.whole)
        except (DjinnError, TypeError):
            return None

    @property
    def ends_the_engine(self) -> bool:
        """True for the one order whose purpose that is."""
        return self.kind is ask.Shutdown and self.fields.get("force") is True

    def frames(self, number: int) -> list[bytes]:
        """Encode it as a client that checks nothing; a value that msgpack cannot encode is left out."""
        try:
            return [bytes(frame) for frame in codec.encode(number, self.kind(**self.whole))]
        except (DjinnError, TypeError):
            body = {"request": self.kind.__name__, **_sayable(self.whole)}
            return [msgspec.msgpack.encode({"id": number, "body": body})]


def _sayable(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in fields.items():
        try:
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError):
            continue
        kept[name] = value
    return kept


def cases(kind: type, quality: Quality, name: str) -> Iterator[tuple[State, Case]]:
    """Yield ordinary requests (the first four) in every state; all others take the states in turn."""
    every = values.requests(kind, quality)
    states: Iterator[tuple[State, dict[str, Any]]]
    if kind not in OF_A_SESSION:
        states = zip(itertools.repeat(STATES[-1]), every)
    elif quality == "ordinary":
        states = itertools.product(STATES, every[:4])
    else:
        states = zip(itertools.cycle(STATES), every)
    for state, fields in states:
        yield state, Case(kind, fields, name)


def some_cases(kind: type, quality: Quality, name: str, of_each_state: int) -> Iterator[tuple[State, Case]]:
    """Yield some of `cases`, the same ones at every call."""
    every = list(cases(kind, quality, name))
    chance = random.Random(f"{kind.__name__} {quality}")
    for state in STATES:
        those = [one for one in every if one[0] == state]
        yield from chance.sample(those, min(of_each_state, len(those)))


# --- many at once ----------------------------------------------------------------------------------------------------

CLIENTS: Final = 8
SESSIONS: Final[dict[str, State]] = {
    "running": "running",
    "away": "away",
    "a": "stopped",
    "other": "stopped",
    "empty": "empty",
    "nobody": "missing",
}
Step = tuple[int, Case, int]


def _step(client: int, kind: type, quality: Quality, choice: int, name: str, pause: int) -> Step:
    every: Sequence[dict[str, Any]] = values.requests(kind, quality)
    return client, Case(kind, every[choice % len(every)], name), pause


# Which client asks what, and how far the engine may get before the next one does.
STEPS: Final = st.lists(
    st.builds(
        _step,
        st.integers(0, CLIENTS - 1),
        st.sampled_from(KINDS),
        st.sampled_from(["ordinary", "ordinary", "extreme", "wrong"]),
        st.integers(0, 10**6),
        st.sampled_from(sorted(SESSIONS)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)
