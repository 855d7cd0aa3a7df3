"""Passes that several runs share. The rows of a batch arrive one after another, so runs that begin wait until no other
has come for a while. Meanwhile the engine's thread has nothing to do, and leaves the GIL to the thread that reads
requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes.columns import (
    ColumnMemory,
    Columns,
    KeptMemory,
    capacity_for,
    next_logits,
    prompt_logits,
)
from djinn_jupyter.engine.passes.controller import Completed, Yielded, make_plan
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.packing import why_not_in_columns
from djinn_jupyter.engine.passes.sections import Sections
from djinn_jupyter.engine.passes.shared_cache import REFUSALS, equal_but_for_rounding, why_not_batched
from djinn_jupyter.engine.session.residence import Blocked, Pieces
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.shared_prompts import Seat, SharedPrompts, drawn, driven, rechecked
from djinn_jupyter.engine.system.device import out_of_memory
from djinn_jupyter.errors import OutOfDeviceMemory, SlabFull

QUIET_S: Final = 0.008  # Python makes a thread that reads requests wait up to 5 ms for the GIL


class Debounce:
    """Waits until `seated` has been the same number for QUIET_S. The first run checks the clock for the others."""

    def __init__(self, seated: Callable[[], int]) -> None:
        self._seated = seated
        self._quiet_at: float | None = None

    @property
    def due_in(self) -> float:
        """The seconds until the gathered runs continue, if no other comes before; infinite where none gather."""
        return math.inf if self._quiet_at is None else max(0.0, self._quiet_at - time.monotonic())

    def wait(self, seat: Seat) -> Pieces:
        """Wait with the other runs that begin."""
        if self._quiet_at is not None:
            yield lambda: seat.waits and self._quiet_at is not None
            return
        try:
            yield from self._until_quiet(seat)
        finally:
            self._quiet_at = None

    def _until_quiet(self, seat: Seat) -> Pieces:
        seated = 0
        while seated != self._seated():
            seated, self._quiet_at = self._seated(), time.monotonic() + QUIET_S
            yield partial(self._another_may_come, seat, seated)

    def _another_may_come(self, seat: Seat, seated: int) -> bool:
        return seat.waits and self._seated() == seated and self.due_in > 0


# The trial of shared passes: in this family several sequences may share their prompts and next positions where short
# sequences of ours prove it, once.

LENGTHS: Final = ((9, 5, 7), (6, 6, 6))
FEW: Final = 64  # ids of any vocabulary
PARTS: Final = (slice(None, -1), slice(-1, None))  # of a sequence: its prompt, and its next token
Logits = Generator[Blocked | None, None, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reasons why prompts, and next positions, cannot share passes; None where they can."""

    prompts: str | None = None
    next_positions: str | None = None


class Trial:
    """The trial of one engine. `caches` are those of its sequences while it runs: their pages belong to no session."""

    def __init__(self, forward: Forward, new_cache: Callable[[], PagedCache], should_yield: Callable[[], bool]) -> None:
        self._forward, self._new_cache, self._should_yield = forward, new_cache, should_yield
        self.caches: list[PagedCache] = []

    def why_not(self) -> Generator[Blocked | None, None, WhyNot]:
        """Return the reasons against sharing, after two dozen passes over a few tokens; yields between their layers.
        Raises SlabFull, OutOfDeviceMemory and torch.OutOfMemoryError where memory is short, and has freed its pages."""
        reason = why_not_batched(self._forward)
        found = WhyNot(prompts=reason, next_positions=reason or why_not_in_columns(self._forward))
        for lengths in LENGTHS if reason is None else ():
            with self._pages_for((*lengths, *lengths)) as caches:
                here = yield from self._compared(caches[: len(lengths)], caches[len(lengths) :], lengths)
            found = WhyNot(
                prompts=found.prompts or here.prompts, next_positions=found.next_positions or here.next_positions
            )
        return found

    @contextmanager
    def _pages_for(self, lengths: Sequence[int]) -> Iterator[Sequence[PagedCache]]:
        """Make caches with the pages of sequences of these lengths and one more token."""
        self.caches += [self._new_cache() for _ in lengths]
        try:
            for cache, length in zip(self.caches, lengths, strict=True):
                cache.allocate(0, length + 1)
            yield tuple(self.caches)
        finally:
            for cache in self.caches:
                cache.free()
            self.caches.clear()

    def _compared(
        self, shared: Sequence[PagedCache], alone: Sequence[PagedCache], lengths: Sequence[int]
    ) -> Generator[Blocked | None, None, WhyNot]:
        """Compare sequences in a batch, the first of them NaN, with passes of their own: their prompts, then the next
        position after the rows that these left, if they are right, else after those of passes of their own."""
        generator = torch.Generator().manual_seed(sum(lengths))
        lines = [tuple(torch.randint(FEW, (n + 1,), generator=generator).tolist()) for n in lengths]
        prompts: list[Tensor] = []
        following: list[Tensor] = []
        for found, at in zip((prompts, following), PARTS, strict=True):
            for line, cache in zip(lines, alone, strict=True):
                found.append((yield from self._passed(line[at], cache)))
        of_prompts = yield from self._why_other(self._prompts(lines, shared), prompts)
        if of_prompts is not None:
            for line, cache in zip(lines, shared, strict=True):
                cache.free()
                yield from self._passed(line[:-1], cache)
        of_next = yield from self._why_other(self._next(lines, shared), following)
        return WhyNot(prompts=of_prompts, next_positions=of_next)

    def _why_other(self, together: Logits, alone: Sequence[Tensor]) -> Generator[Blocked | None, None, str | None]:
        """Return why logits [B, V] computed together differ from each sequence's alone; None where they do not."""
        try:
            ours_BV = yield from together
        except REFUSALS as error:
            if out_of_memory(error):
                raise  # shows nothing about the family
            return f"its layers refuse several lines ({first_line(error)})"
        if not equal_but_for_rounding(ours_BV[1:], torch.stack(list(alone[1:])), self._forward.model.dtype):
            return "its layers give a line other values among others than alone"
        return None

    def _prompts(self, lines: Sequence[tuple[int, ...]], caches: Sequence[PagedCache]) -> Logits:
        forward, prompts = self._forward, [line[:-1] for line in lines]
        longest = max(map(len, prompts))
        memory = ColumnMemory(forward.geometry, len(lines) * longest, forward.device)
        columns = Columns(memory, [0] * len(lines), longest)
        step = prompt_logits(Sections(forward), columns, prompts, spoilt=0)
        logits_BV = yield from driven(step, self._should_yield)
        for number, (prompt, cache) in enumerate(zip(prompts, caches, strict=True)):
            columns.put(number, cache, len(prompt))
        return logits_BV

    def _next(self, lines: Sequence[tuple[int, ...]], caches: Sequence[PagedCache]) -> Logits:
        lengths = [cache.length for cache in caches]
        capacity = capacity_for(lengths)
        memory = ColumnMemory(self._forward.geometry, len(caches) * capacity, self._forward.device)
        columns = Columns(memory, lengths, capacity)
        columns.fill(caches)
        for run in (run for group in columns.runs for run in group):
            for rows in run:
                rows[:, 0].fill_(torch.nan)
        step = next_logits(self._forward, columns, [line[-1] for line in lines])
        return (yield from driven(step, self._should_yield))

    def _passed(self, tokens: tuple[int, ...], cache: PagedCache) -> Logits:
        frame, plan = Frame(tokens=tokens, committed=cache.length, step=0), make_plan(yields=self._should_yield)
        while True:
            outcome = self._forward.enter(frame, plan, cache, {}, lambda kept: None)
            if isinstance(outcome, Completed):
                return outcome.logits_1V[0]
            assert isinstance(outcome, Yielded)
            frame = outcome.frame
            yield None


# Passes that several running sessions share: those that asked for it, at their prompts and at their next tokens. A run
# takes a seat before such a pass and waits for one round of the others. Among those seated then, the first to have its
# turn runs the passes for all; each continues with its own logits. Where a pass cannot be shared (alone in the round,
# no memory, a family whose sequences cannot), every seat is answered None: its run does the pass by itself, as usual.

SPLIT: Final = "ranks of a split model compute one session's pass at a time"
CHECKED_OF: Final = 32  # shared next positions, the first among them: in one of so many a row is computed again alone


class SharedPasses:
    """The seats of one engine, and the columns of those that last ran together. `why_not` is the reason why next
    positions of this family run one by one, once known, and `prompts` has the same for prompts; `why_no_more` is the
    reason why no passes are shared any more, though some have been, which may be wrong."""

    def __init__(
        self,
        forward: Forward,
        new_cache: Callable[[], PagedCache],
        should_yield: Callable[[], bool],
        budget: Budget,
    ) -> None:
        self._forward, self._should_yield = forward, should_yield
        self._trial = Trial(forward, new_cache, should_yield)
        self._memory = KeptMemory(forward.geometry, forward.device, budget)
        self.prompts = SharedPrompts(forward, should_yield, self._memory, budget, by=self)
        self._tested = False
        self._untried, self._skipped = 0, 0
        self._unchecked = CHECKED_OF
        self.why_not: str | None = None
        self.why_no_more = SPLIT if forward.split else None
        self._seated: list[Seat] = []
        self._asking: dict[int, Seat] = {}  # by the identity of the session
        self._leader: Seat | None = None
        self._debounce = Debounce(lambda: len(self._seated))
        self._columns: Columns | None = None
        self._members: list[Seat] = []
        budget.join(
            self,
            Part(
                name="shared passes",
                held=lambda: self._bytes() + self.prompts.held,
                idle=self._idle_bytes,
                release=self._release,
            ),
        )

    @property
    def due_in(self) -> float:
        """The seconds until runs that wait for others go on; infinite where none wait."""
        return self._debounce.due_in

    @property
    def caches(self) -> Sequence[PagedCache]:
        """The caches of a running trial."""
        return tuple(self._trial.caches)

    def passed(self, seat: Seat) -> Generator[Blocked | None, None, Completed | None]:
        """Run the next pass of a seat together with others; None where it has to run alone, or is outdated."""
        seat.waits, seat.outcome, seat.difference = True, None, None
        self._seated.append(seat)
        self._asking[id(seat.session)] = seat
        try:
            yield None  # the others of this round take their seats
            if seat.begins:
                yield from self._debounce.wait(seat)
            while seat.waits:
                if self._leader is None:
                    yield from self._lead(seat)
                else:
                    yield lambda: seat.waits and self._leader is not None
            return seat.outcome
        finally:
            seat.waits = False
            del self._asking[id(seat.session)]
            if seat in self._seated:
                self._seated.remove(seat)

    def answered(self, session: Session) -> bool:
        """True where another run has computed this session's pass, and its own has not continued yet."""
        seat = self._asking.get(id(session))
        return seat is not None and not seat.waits and seat.outcome is not None

    def leave(self, seat: Seat) -> None:
        """Free the columns if the seat's run, which ends or runs a pass of its own, was the last of them."""
        if seat in self._members and not any(
            one is not seat and one.session.state == "running" for one in self._members
        ):
            self._drop()

    def _lead(self, leader: Seat) -> Pieces:
        """Run the passes of all seated runs; prompts beyond one turn's stay seated."""
        self._leader, seats = leader, self._seated
        self._seated = []
        left: Sequence[Seat] = ()
        try:
            left = yield from self._passes(seats)
        except (SlabFull, OutOfDeviceMemory, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not out_of_memory(error):
                raise
            self._drop()
            self._memory.release()
        finally:
            self._leader = None
            for seat in seats:
                if seat not in left:
                    seat.waits = False
            self._seated = [*(seat for seat in left if seat.waits), *self._seated]

    def _passes(self, seats: Sequence[Seat]) -> Generator[Blocked | None, None, Sequence[Seat]]:
        """Return the seats whose prompts have to wait for the next turn."""
        if not self._tested and self.why_no_more is None and len(seats) > 1:
            yield from self._try_the_family()
        if not self._tested or self.why_no_more is not None:
            return ()
        if self.why_not is None:
            yield from self._next_positions([seat for seat in seats if not seat.begins])
        return (yield from self.prompts.run([seat for seat in seats if seat.begins]))

    def _next_positions(self, seats: Sequence[Seat]) -> Pieces:
        seats = self._alike([seat for seat in seats if seat.open and seat.allocate()])
        seats = list(self._members) if set(seats) == set(self._members) else seats  # in the order of the columns
        if len(seats) < 2 or not self._join(seats):
            return
        columns = self._columns
        assert columns is not None
        step = next_logits(self._forward, columns, [seat.session.tokens[-1] for seat in seats])
        logits_BV = yield from driven(step, self._should_yield)
        yield from self._recheck(columns, seats, logits_BV)
        if self.why_no_more is None:
            self._answer(columns, seats, logits_BV)
        if any(seat.outcome is None for seat in seats):
            self._drop()  # that sequence runs this position again, by its new plan

    def _alike(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Return the seats whose sequences have the same rotary frequencies, as most have; the others run alone."""
        each = [self._forward.frequencies(len(seat.session.tokens)) for seat in seats]
        most = max(each, key=each.count, default=None)
        return [seat for seat, frequencies in zip(seats, each, strict=True) if frequencies == most]

    def _recheck(self, columns: Columns, seats: Sequence[Seat], logits_BV: Tensor) -> Pieces:
        """Run a drawn sequence's position alone, if due, and put its rows into the columns."""
        self._unchecked += 1
        if self._unchecked < CHECKED_OF:
            return
        self._unchecked = 0
        seat = drawn(seats)
        line = seats.index(seat)
        if not (yield from rechecked(self._forward, seat, logits_BV[line], self._should_yield)):
            self.why_no_more = "a token computed with others differed from the same computed alone"
        elif seat.outcome is not None:
            columns.copy(line, seat.session.cache)

    def _answer(self, columns: Columns, seats: Sequence[Seat], logits_BV: Tensor) -> None:
        for line, seat in enumerate(seats):
            if seat.open and seat.outcome is None:
                columns.put(line, seat.session.cache)
                seat.take(logits_BV[line : line + 1], self._forward.layers)
        columns.advance()

    def _try_the_family(self) -> Pieces:
        """Test whether sequences can share passes here. Without memory, skip twice as many rounds as last time."""
        if self._skipped < self._untried:
            self._skipped += 1
            return
        try:
            found = yield from self._trial.why_not()
            self.why_not = found.next_positions
            if found.prompts is not None:
                self.prompts.why_not = f"this family's lines cannot share them: {found.prompts}"
            self._tested = True
        except (SlabFull, OutOfDeviceMemory, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not out_of_memory(error):
                raise
            self._untried, self._skipped = 2 * self._untried + 1, 0

    def _join(self, seats: Sequence[Seat]) -> bool:
        """Put the rows of exactly these seats into the columns. False without memory for that."""
        caches = [seat.session.cache for seat in seats]
        lengths = [cache.length for cache in caches]
        columns = self._columns
        if columns is not None and not columns.full and self._members == seats and columns.lengths == lengths:
            return True
        self._drop()
        capacity = capacity_for(lengths, max(seat.to_come for seat in seats))
        try:
            memory = self._memory.take(len(seats) * capacity)
        except SlabFull:
            return False
        self._columns, self._members = Columns(memory, lengths, capacity), list(seats)
        self._columns.fill(caches)
        return True

    def _drop(self) -> None:
        columns, self._columns, self._members = self._columns, None, []
        if columns is not None:
            self._memory.give_back(columns.memory)

    def _bytes(self) -> int:
        return 0 if self._columns is None else self._columns.memory.nbytes

    def _idle_bytes(self) -> int:
        return 0 if self._leader is not None else self._bytes()

    def _release(self) -> int:
        size = self._idle_bytes()
        if size:
            self._drop()
            self._memory.release()
        return size
