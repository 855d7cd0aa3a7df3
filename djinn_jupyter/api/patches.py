"""Convert positions as users write them (5, [1, 4], slice(2, 5), "2:5,-1") to the indices that cross the wire.

Absolute; a negative index counts from the end of the stopped pass; the end of a slice is excluded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsIndex

from djinn_jupyter.api.arguments import shown
from djinn_jupyter.api.arrays import from_any
from djinn_jupyter.errors import DjinnError, InvalidEdit

if TYPE_CHECKING:
    from djinn_jupyter.api.stops import Paused
    from djinn_jupyter.link.channel import Channel
    from djinn_jupyter.wire.edits import Edit, PatchFrom, Set


Positions = int | slice | str | Iterable[SupportsIndex] | None
MAX_POSITIONS = 4_000_000
TOKENS_TOLD = 24


def spell_positions(
    positions: Positions, ends: Callable[[], tuple[int, int]], named: Callable[[str], list[int]] | None = None
) -> tuple[int, ...] | None:
    """Return the indices; None stays None (the whole pass). `ends` returns the first position of the stopped pass and
    the one after its last, for open slices; `named` returns the positions of a token by its text."""
    if positions is None:
        return None
    return _some(_indices(_by_name(positions, named) if isinstance(positions, str) else positions, ends), positions)


def positions_at(stop: Paused, positions: Positions) -> tuple[int, ...] | None:
    """Return the indices of positions of a stopped pass with the texts of its tokens."""
    return spell_positions(
        positions,
        lambda: (stop.positions[0], stop.positions[-1] + 1),
        lambda text: positions_of_text(text, {at: stop.texts[at] for at in stop.positions}),
    )


def _some(found: Iterable[int], written: object) -> tuple[int, ...]:
    """Return the indices that a text selects. InvalidEdit for none or too many."""
    indices = tuple(found)
    if not indices or len(indices) > MAX_POSITIONS:
        raise InvalidEdit(f"Positions {shown(written)} select nothing (or too much); write -1, [0, 4] or '2:5'.")
    return indices


def spell_standing(
    positions: Positions, named: Callable[[str], list[int]] | None = None
) -> tuple[tuple[int, ...] | None, int | None]:
    """Return the positions of a rule, which applies to later passes: indices, and the first of all later positions
    (`5:`); (None, None) for the whole pass. Negative indices count from the end of each pass."""
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
    """Return a slice of a rule with both ends, or as Onward; other positions unchanged."""
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
    """Return the `ends` of positions without a stopped pass: an open slice raises the refusal."""

    def refuse() -> tuple[int, int]:
        raise refusal

    return refuse


def positions_of_text(text: str, texts: Mapping[int, str]) -> list[int]:
    """Return the positions in `texts` of tokens with this text; if there are none, of tokens that match without
    surrounding spaces. InvalidEdit where none matches."""
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


# Patches whose value crosses the wire: from a session of another engine, and for rules, which outlive the source's
# stop. A patch between two stops of one engine stays there.


class SeenValue(Protocol):
    """A value that was read, with its positions in the source."""

    @property
    def positions(self) -> tuple[int, ...]: ...

    @property
    def value(self) -> Any: ...


class StandsAt(Protocol):
    """A stop, as a patch of its value uses it."""

    @property
    def site(self) -> str: ...

    @property
    def positions(self) -> tuple[int, ...]: ...


class PatchedSession(Protocol):
    """The session of a patch, its source or its target."""

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> Channel: ...

    @property
    def stop(self) -> StandsAt: ...

    def sibling(self, name: str) -> PatchedSession: ...

    def inspect(self, site: str | int | None = ..., positions: Positions = ...) -> SeenValue: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The value at a site of another session's stopped pass. `session` is a session of any engine, or the name of one
    in the edited session's engine; `positions` count in the source."""

    session: PatchedSession | str
    site: str | None = None
    positions: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.session if isinstance(self.session, str) else self.session.name

    def within(self) -> PatchFrom:
        """Return the edit for an engine that has both sessions."""
        from djinn_jupyter.wire.edits import PatchFrom

        return PatchFrom(session=self.name, site=self.site, positions=self.positions)

    def is_away(self, session: PatchedSession) -> bool:
        """True where the source is in another engine than `session`."""
        return not isinstance(self.session, str) and session.channel is not self.session.channel


def patch_from(session: PatchedSession | str, *, site: str | None = None, positions: Positions = None) -> Patch:
    """Replace the value by the value at a site of another session's stopped pass. `positions` count in the source; an
    open slice is refused."""
    ends = no_ends(InvalidEdit("The source of a patch needs both ends of a slice: write '2:5'."))
    return Patch(session=session, site=site, positions=spell_positions(positions, ends))


def in_one_engine(edit: Edit | Patch) -> Edit:
    """Return the edit in the form of its session's engine."""
    return edit.within() if isinstance(edit, Patch) else edit


def at_stop(
    edit: Edit | Patch, target: PatchedSession, site: str | None, positions: tuple[int, ...] | None
) -> tuple[Edit, str | None]:
    """Return the edit of a stopped value, with its words where the value came from another engine."""
    if not isinstance(edit, Patch):
        return edit, None
    if not edit.is_away(target):
        return edit.within(), None
    stop = target.stop
    end = stop.positions[-1] + 1
    here = stop.positions if positions is None else tuple(end + p if p < 0 else p for p in positions)
    made, _, words = taken(edit, target, site or stop.site, tuple(here))
    return made, words


def taken(
    patch: Patch, target: PatchedSession, site: str, positions: tuple[int, ...] | None
) -> tuple[Set, tuple[int, ...], str]:
    """Read the value of a patch. Return the edit that sets it, its positions in the target, and the edit in words."""
    from djinn_jupyter.wire.edits import Set
    from djinn_jupyter.wire.sites import parse_every_layer
    from djinn_jupyter.wire.texts import label

    if parse_every_layer(patch.site or site) is not None:
        raise InvalidEdit("patch_from takes the value of one site: name its layer, such as resid_post.4.")
    source = target.sibling(patch.session) if isinstance(patch.session, str) else patch.session
    there = source.inspect(patch.site or site, patch.positions or positions)
    if positions is not None and len(positions) != len(there.positions):
        raise InvalidEdit(
            f"patch_from: the source has {len(there.positions)} positions, the edited part {len(positions)}; name as "
            "many there as here."
        )
    value = from_any(there.value)
    words = f"patch from {label(patch.name)}" + (f" at {patch.site}" if patch.site else "")
    return Set(value=value), positions or tuple(there.positions), words
