"""Who leaves the device: an order of candidates, and how many of them. Pure functions; moves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.residency.priority import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A session on the device. `frees_bytes`: what its leaving frees at once (pages shared with a session that stays
    are not in it); `dirty_bytes`: of those, what has no copy yet. `restore_seconds`: to bring it back from where it
    would go. `rested_seconds`: since something was last done to it; `remaining_seconds`: for which it is expected to
    rest on."""

    session: str
    claim: Claim
    frees_bytes: int
    dirty_bytes: int
    restore_seconds: float
    rested_seconds: float
    remaining_seconds: float

    @property
    def worth(self) -> float:
        """What its leaving is worth: bytes x seconds that others get, for each second that somebody waits for it."""
        return self.frees_bytes * self.remaining_seconds / max(self.restore_seconds, 1e-9)


Order = Callable[[Iterable[Candidate]], list[Candidate]]


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those who may leave, first to last: the detached, then the idle and the paused, then those at whom somebody is;
    in each the most worth, then the clean and the longest rested first. Never who runs, nor who would free nothing."""
    may = [c for c in candidates if c.claim is not Claim.RUNNING and c.frees_bytes > 0]
    return sorted(may, key=lambda c: (_rank(c.claim), -c.worth, c.dirty_bytes > 0, -c.rested_seconds, c.session))


def _rank(claim: Claim) -> int:
    """Idle and paused are one: to send all the idle away before any paused one costs 1.4 to 1.5 times the waiting of
    the least recently used first in the office trace of benchmarks/replay."""
    return Claim.IDLE if claim is Claim.PAUSED else claim


def victims(ordered: Sequence[Candidate], need_bytes: int) -> list[Candidate]:
    """The first of `ordered` whose leaving frees `need_bytes`, less those that are not needed for it after all, the
    last in order being spared first. All where even that is too little; none where nothing is needed."""
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


def rested(candidates: Iterable[Candidate], idle_seconds: float) -> list[Candidate]:
    """Those who have rested for so long that they leave although nobody wants their place, in order."""
    return [c for c in in_order(candidates) if c.rested_seconds >= idle_seconds]
