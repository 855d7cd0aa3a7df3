"""Arrange sessions and their stops in a tree by fork: each session below the session it was forked from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One session of the tree. `own` are its stops that `parent` does not have; it branches off after the parent's
    first `at` stops, counting those that the parent shares with its own parent. `depth` 0 is a root."""

    branch: Branch
    own: tuple[StopDescription, ...]
    parent: str | None
    at: int
    depth: int


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
