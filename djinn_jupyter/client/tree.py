"""Arrange sessions and their stops in a tree by fork: each session below the session it was forked from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from djinn_jupyter.client.frames import Tabular, in_columns
from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch

ROW: Final = ("session", "state", "forked_from", "stop", "site", "step", "position", "reason", "edited", "present")
NO_STOP: Final = (None,) * 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One session of the tree. `own` are its stops that `parent` does not have; it branches off after the parent's
    first `at` stops, counting those that the parent shares with its own parent. `depth` 0 is a root."""

    branch: Branch
    own: tuple[StopDescription, ...]
    parent: str | None
    at: int
    depth: int


class Branches(Tabular, tuple[Branch, ...]):
    """The stops of all sessions: a tuple of branches, one a session, and a table."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the stops as lists by column, each once, where it was made: its session, the session's state, and the
        session that it was forked from; the stop's index, site, step, position and reason, and whether it is edited
        and the one where the session stands. A session without stops of its own has one row with None."""
        return in_columns(ROW, [line for row in rows_of(self) for line in _lines(row)])


def _lines(row: TreeRow) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each own stop of a session, or one without a stop."""
    branch = row.branch
    origin = branch.forked_from.session if branch.forked_from is not None else None
    for stop in row.own:
        told = (stop.index, stop.site, stop.step, stop.position, stop.reason, stop.edited)
        yield (branch.session, branch.state, origin, *told, stop.index == branch.present)
    if not row.own:
        yield (branch.session, branch.state, origin, *NO_STOP, False)


def rows_of(branches: Sequence[Branch]) -> list[TreeRow]:
    """Return each session once, a fork below its parent. A fork of a session that is gone is a root."""
    there = {branch.session: branch for branch in branches}
    roots = [branch for branch in branches if _parent(branch, there) is None]
    return [row for root in roots for row in _below(root, there, None, 0)]


def _below(branch: Branch, there: dict[str, Branch], parent: Branch | None, depth: int) -> Iterator[TreeRow]:
    shared = 0 if parent is None else _shared(branch, parent)
    name = None if parent is None else parent.session
    yield TreeRow(branch=branch, own=branch.stops[shared:], parent=name, at=shared, depth=depth)
    for child in there.values():
        if child is not branch and _parent(child, there) == branch.session:
            yield from _below(child, there, branch, depth + 1)


def _parent(branch: Branch, there: dict[str, Branch]) -> str | None:
    """Return the session that this one was forked from, or None if it is gone. A parent's name since reused by a
    session forked from this one would make a cycle: it counts as gone."""
    seen = {branch.session}
    above = branch
    while above.forked_from is not None and above.forked_from.session in there:
        above = there[above.forked_from.session]
        if above.session in seen:
            return None
        seen.add(above.session)
    origin = branch.forked_from
    return origin.session if origin is not None and origin.session in there else None


def _shared(branch: Branch, parent: Branch) -> int:
    """Return how many leading stops both have. A stop without a number is never shared."""
    pairs = zip(branch.stops, parent.stops, strict=False)
    count = 0
    for one, other in pairs:
        if one.number is None or one.number != other.number:
            break
        count += 1
    return count
