"""Passes that several running sessions share: those that asked for it, at their next generated token.

A run takes a seat before such a pass and waits for one round of the others. Of those seated then, the first to have
its turn runs the pass for all; each goes on with its own logits. Where a pass cannot be shared (alone in the round, no
memory, a family whose lines cannot), every seat is answered None: its run does the pass by itself, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from djinn_jupyter.engine.forward.forward import Forward, out_of_memory
from djinn_jupyter.engine.forward.pass_controller import Completed
from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.session import trial
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.wavefront.columns import Columns, bytes_of
from djinn_jupyter.engine.wavefront.next_position import next_logits
from djinn_jupyter.errors import SlabFull

Steps = Generator[Blocked | None, None, None]


@dataclass(slots=True, eq=False)
class Seat:
    """One run of one session, for as long as it goes on without a pass of its own."""

    session: Session
    waits: bool = False
    outcome: Completed | None = None

    def stand_alone(self) -> None:
        """Note that the run does a pass by itself."""
        self.outcome = None


class SharedPasses:
    """The seats of one engine, and the columns of those that ran together last."""

    def __init__(
        self,
        forward: Forward,
        new_cache: Callable[[], PagedCache],
        should_yield: Callable[[], bool],
        budget: Budget,
    ) -> None:
        self._forward, self._new_cache, self._should_yield = forward, new_cache, should_yield
        self._budget, self._held = budget, 0
        self._tested = False
        self._why_not: str | None = None
        self._seated: list[Seat] = []
        self._leader: Seat | None = None
        self._columns: Columns | None = None
        self._members: list[Seat] = []
        budget.join(
            self, Part(name="shared passes", held=lambda: self._held, idle=self._idle_bytes, release=self._release)
        )

    @property
    def why_not(self) -> str | None:
        """The reason for which lines of this family run one by one, once that is known."""
        return self._why_not

    def passed(self, seat: Seat) -> Generator[Blocked | None, None, Completed | None]:
        """Run the next pass of a seat together with others; None where it has to run alone."""
        seat.waits, seat.outcome = True, None
        self._seated.append(seat)
        try:
            yield None  # the others of this round take their seats
            while seat.waits:
                if self._leader is None:
                    yield from self._lead(seat)
                else:
                    yield lambda: seat.waits and self._leader is not None
            return seat.outcome
        finally:
            seat.waits = False
            if seat in self._seated:
                self._seated.remove(seat)

    def leave(self, seat: Seat) -> None:
        """Free the columns where the seat's run, which ends or runs a pass of its own, was the last of them."""
        if seat in self._members and not any(
            one is not seat and one.session.state == "running" for one in self._members
        ):
            self._drop()

    def _lead(self, leader: Seat) -> Steps:
        """Run one pass for all who are seated now."""
        self._leader, seats = leader, self._seated
        self._seated = []
        try:
            yield from self._pass(seats)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self._drop()
        finally:
            self._leader = None
            for seat in seats:
                seat.waits = False

    def _pass(self, seats: Sequence[Seat]) -> Steps:
        if not self._tested and len(seats) > 1:
            with suppress(SlabFull):
                self._why_not = trial.why_not(self._forward, self._new_cache)
                self._tested = True
        seats = [seat for seat in seats if seat.waits and _has_room(seat.session)]
        if len(seats) < 2 or not self._tested or self._why_not is not None or not self._join(seats):
            return
        columns = self._columns
        assert columns is not None
        step = next_logits(self._forward, columns, [seat.session.tokens[-1] for seat in seats])
        while True:
            try:
                next(step)
            except StopIteration as done:
                logits_BV = done.value
                break
            if self._should_yield():
                yield None
        for line, seat in enumerate(seats):
            if seat.waits:
                columns.put(line, seat.session.cache)
                seat.outcome = Completed(
                    logits_1TV=logits_BV[line : line + 1, None].clone(), layers_run=self._forward.layers
                )
        columns.advance()

    def _join(self, seats: Sequence[Seat]) -> bool:
        """Have the rows of exactly these seats in the columns. False where there is no memory for that."""
        caches = [seat.session.cache for seat in seats]
        lengths = [cache.length for cache in caches]
        columns = self._columns
        if columns is not None and not columns.full and self._members == seats and columns.lengths == lengths:
            return True
        self._drop()
        size = bytes_of(self._forward.geometry, lengths)
        try:
            self._budget.take(size, by=self)
        except SlabFull:
            return False
        self._held = size
        self._columns, self._members = Columns(self._forward.geometry, caches, self._forward.device), list(seats)
        return True

    def _drop(self) -> None:
        self._columns, self._members = None, []
        self._budget.give_back(self._held)
        self._held = 0

    def _idle_bytes(self) -> int:
        return 0 if self._leader is not None else self._held

    def _release(self) -> int:
        size = self._idle_bytes()
        if size:
            self._drop()
        return size


def _has_room(session: Session) -> bool:
    """Allocate the page of the session's next position. False where there is none: its own pass evicts others."""
    try:
        session.cache.allocate(session.cache.length, session.cache.length + 1)
    except SlabFull:
        return False
    return True
