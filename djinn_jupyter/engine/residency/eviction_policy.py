"""The order in which sessions leave the device, and the number of those that do. Pure functions; moves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.residency.priority import Claim
from djinn_jupyter.engine.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A session on the device. `frees_bytes`: bytes freed at once when it leaves (without pages shared with a session
    that stays). `rested_seconds`: since it was last used; `remaining_seconds`: the expected rest from now on."""

    session: str
    claim: Claim
    frees_bytes: int
    rested_seconds: float
    remaining_seconds: float


def by_last_use(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions, the longest unused first: all that counts for one tier or the engine's end."""
    return sorted(sessions, key=lambda session: session.residence.touched)


EvictionOrder = Callable[[Iterable[Candidate]], list[Candidate]]


def latest_return_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the sessions that may be evicted, first to last: detached, then idle and paused, then stepping; within
    each the last to return first. A session has announced its return, or is expected to rest as long again as it has,
    so without announcements the least recently used leaves first. Never a running one, nor one that frees nothing."""
    may = [c for c in candidates if c.claim is not Claim.RUNNING and c.frees_bytes > 0]
    return sorted(may, key=lambda c: (_rank(c.claim), -c.remaining_seconds, c.session))


def may_leave_for(due_in: float, ordered: Sequence[Candidate], need_bytes: int) -> bool:
    """Return whether the first of `ordered` may leave now for a session that returns in so many seconds: they free
    `need_bytes`, no cell is at work on them, and each returns later than it."""
    chosen = victims(ordered, need_bytes)
    enough = sum(c.frees_bytes for c in chosen) >= need_bytes
    return enough and all(c.claim is not Claim.STEPPING and c.remaining_seconds > due_in for c in chosen)


def least_recently_used(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the sessions that may be evicted, the least recently used first, whatever their expected return."""
    may = [c for c in candidates if c.claim is not Claim.RUNNING and c.frees_bytes > 0]
    return sorted(may, key=lambda c: (-c.rested_seconds, c.session))


def _rank(claim: Claim) -> int:
    """Return the claim's rank; idle and paused have one: evicting all idle sessions before any paused one costs 1.4 to
    1.5 times the waiting of least-recently-used order in the replay of the office trace."""
    return Claim.IDLE if claim is Claim.PAUSED else claim


def victims(ordered: Sequence[Candidate], need_bytes: int) -> list[Candidate]:
    """Return the first of `ordered` that together free `need_bytes`, without unnecessary ones; the last in order are
    spared first. All where even that is too little; none where nothing is needed."""
    chosen: list[Candidate] = []
    freed = 0
    for candidate in ordered:
        if freed >= need_bytes:
            break
        chosen.append(candidate)
        freed += candidate.frees_bytes
    for candidate in reversed(chosen[:-1]):
        if freed - candidate.frees_bytes >= need_bytes:
            chosen.remove(candidate)
            freed -= candidate.frees_bytes
    return chosen
