"""The person of a hub's user: the same name, in characters that a person's name may have."""

from __future__ import annotations

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.naming import MOST_CHARACTERS


def person_of(user: str) -> str:
    """Return the person's name, another one for each user: what a name may not have, and `_`, is spelled `_40` by the
    bytes of UTF-8, behind `u_` where it is the first character. UsageError for a name too long."""
    spelled = "".join(_spelled(character, first=not at) for at, character in enumerate(user))
    if not 0 < len(spelled) <= MOST_CHARACTERS:
        raise UsageError(
            f"The name of the hub's user {user[:40]!r} has {len(spelled)} characters as a person's; {MOST_CHARACTERS} "
            "are the most."
        )
    return spelled


def _spelled(character: str, *, first: bool) -> str:
    if character.isascii() and (character.isalnum() or (character in ".-" and not first)):
        return character
    escaped = "".join(f"_{byte:02X}" for byte in character.encode())
    return f"u_{escaped}" if first else escaped
