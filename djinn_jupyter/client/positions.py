"""Convert positions as users write them (5, [1, 4], slice(2, 5), "2:5,-1") to the indices that cross the wire.

Absolute; a negative index counts from the end of the stopped pass; the end of a slice is excluded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from djinn_jupyter.client.arguments import shown
from djinn_jupyter.errors import DjinnError, InvalidEdit

if TYPE_CHECKING:
    from djinn_jupyter.client.stops import Paused

Positions = int | slice | str | Iterable[SupportsIndex] | None
MAX_POSITIONS = 4_000_000
TOKENS_TOLD = 24


def spell_positions(
    positions: Positions, ends: Callable[[], tuple[int, int]], named: Callable[[str], list[int]] | None = None
) -> tuple[int, ...] | None:
    """Return the indices; None stays None (the whole pass). `ends` returns the first position of the stopped pass and
    the one after its last, needed for an open slice; `named` returns the positions of a token by its text."""
    if positions is None:
        return None
    return _some(_indices(_by_name(positions, named) if isinstance(positions, str) else positions, ends), positions)


def positions_at(stop: Paused, positions: Positions) -> tuple[int, ...] | None:
    """Return the indices of positions of a stopped pass, whose tokens are known by their texts."""
    return spell_positions(
        positions,
        lambda: (stop.positions[0], stop.positions[-1] + 1),
        lambda text: positions_of_text(text, {at: stop.texts[at] for at in stop.positions}),
    )


def _some(found: Iterable[int], written: object) -> tuple[int, ...]:
    """Return the indices that were found by what was written. InvalidEdit where they are none or too many."""
    indices = tuple(found)
    if not indices or len(indices) > MAX_POSITIONS:
        raise InvalidEdit(f"Positions {shown(written)} select nothing (or too much); write -1, [0, 4] or '2:5'.")
    return indices


def spell_standing(
    positions: Positions, named: Callable[[str], list[int]] | None = None
) -> tuple[tuple[int, ...] | None, int | None]:
    """Return the positions of a rule, which is for passes to come: indices, and the first of all later ones (`5:`);
    (None, None) for the whole pass. Negative indices count from the end of each pass."""
    if positions is None:
        return None, None
    chosen = _by_name(positions, named) if isinstance(positions, str) else positions
    parts = [_parsed(part) for part in chosen.split(",")] if isinstance(chosen, str) else [chosen]
    closed = [_closed(part) for part in parts]
    onward = [one for one in closed if isinstance(one, Onward)]
    rest = [one for one in closed if not isinstance(one, Onward)]
    if any(one.first == 0 for one in onward):
        return None, None
    ends = no_ends(InvalidEdit("A rule is for passes of every length: write its positions as 2:5, 5:, -3: or -1."))
    found = _some((index for one in rest for index in _indices(one, ends)), positions) if rest else None
    return found, min((one.first for one in onward), default=None)


class Onward(NamedTuple):
    """All positions from `first` on."""

    first: int


def _closed(part: Any) -> Any:
    """Return a slice of a rule with both of its ends, or as Onward; other positions unchanged."""
    if not isinstance(part, slice):
        return part
    start, stop, step = _bounds(part)
    if stop is None and (start is None or start >= 0) and step == 1:
        return Onward(start or 0)
    if start is None and stop is not None and stop >= 0:
        return slice(0, stop, step)
    if start is not None and start < 0 and stop is None:
        return list(range(start, 0, step))
    return part


def no_ends(refusal: DjinnError) -> Callable[[], tuple[int, int]]:
    """Return the `ends` of positions that are of no stopped pass: an open slice raises the refusal."""

    def refuse() -> tuple[int, int]:
        raise refusal

    return refuse


def positions_of_text(text: str, texts: Mapping[int, str]) -> list[int]:
    """Return the positions of tokens with this text, of `texts` by position; if there are none, of tokens that match
    without surrounding spaces. InvalidEdit where none matches."""
    exactly = [position for position, one in texts.items() if one == text]
    found = exactly or [position for position, one in texts.items() if one.strip() == text.strip()]
    if not found:
        there = ", ".join(repr(one) for one in list(texts.values())[-TOKENS_TOLD:])
        raise InvalidEdit(
            f"No token of the stopped pass reads {shown(text)}. Its tokens are: {there}. Positions are also "
            "-1, 0,4, 2:5 or last."
        )
    return found


def _indices(positions: int | slice | str | Iterable[SupportsIndex], ends: Callable[[], tuple[int, int]]) -> list[int]:
    if isinstance(positions, str):
        return [index for part in positions.split(",") for index in _indices(_parsed(part), ends)]
    try:
        if isinstance(positions, slice):
            return _sliced(positions, ends)
        if isinstance(positions, Iterable):
            return [operator.index(position) for position in positions]
        return [operator.index(positions)]
    except TypeError:
        raise InvalidEdit(f"{shown(positions)} names no positions; write -1, [0, 4], slice(2, 5) or '2:5'.") from None


def _by_name(positions: str, named: Callable[[str], list[int]] | None) -> str | list[int]:
    """Resolve `last` and a token's text (anything but digits, spaces, colons, commas and minus) to indices; return
    other text unchanged."""
    if positions.strip() == "last":
        return [-1]
    return positions if named is None or not re.search(r"[^\d\s:,-]", positions) else named(positions)


def _parsed(part: str) -> int | slice:
    bounds = part.strip().split(":")
    try:
        if len(bounds) == 1:
            return int(bounds[0])
        return slice(*(int(bound) if bound.strip() else None for bound in bounds))
    except (ValueError, TypeError):
        raise InvalidEdit(f"{shown(part)} is no position; write -1, 0,4 or 2:5.") from None


def _bounds(chosen: slice) -> tuple[int | None, int | None, int]:
    """Return the start, end and step of a slice. InvalidEdit for one that goes backward or has no numbers."""
    try:
        start, stop, step = (
            None if bound is None else operator.index(bound) for bound in (chosen.start, chosen.stop, chosen.step)
        )
    except TypeError:
        raise InvalidEdit(f"{shown(chosen)} names no positions; write slice(2, 5) or '2:5'.") from None
    if step is not None and step < 1:
        raise InvalidEdit("A slice of positions goes forward: its step is at least 1.")
    return start, stop, 1 if step is None else step


def _sliced(chosen: slice, ends: Callable[[], tuple[int, int]]) -> list[int]:
    start, stop, step = _bounds(chosen)
    if start is None or stop is None or (start < 0) != (stop < 0):
        first, end = ends()
        start = first if start is None else start + end if start < 0 else start
        stop = end if stop is None else stop + end if stop < 0 else stop
    if stop - start > MAX_POSITIONS * step:
        raise InvalidEdit(f"Positions {start}:{stop} are more than a model has.")
    return list(range(start, stop, step))
