"""A run's place among those that share passes, and the prompts that several runs share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.passes.columns import Columns, KeptMemory, batches_of, prompt_logits
from djinn_jupyter.engine.passes.controller import Completed, Yielded, make_plan
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.sections import Sections
from djinn_jupyter.engine.passes.shared_cache import difference, equal_but_for_rounding
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import SlabFull


@dataclass(slots=True, eq=False)
class Seat:
    """One run of one session, while it needs no pass of its own. `version` is that of the plan of its next pass, in
    which nothing is to happen. `waits` while a shared pass may answer it. `difference`: of the shared row from the same
    computed again alone, where it was."""

    session: Session
    version: int = -1
    waits: bool = False
    outcome: Completed | None = None
    difference: float | None = None

    @property
    def up_to_date(self) -> bool:
        """False where a breakpoint, rule or watch of the session has changed since its plan was made."""
        return self.version == self.session.plan_version

    @property
    def open(self) -> bool:
        return self.waits and self.up_to_date

    @property
    def begins(self) -> bool:
        """True before its prompt."""
        return not self.session.cache.length

    @property
    def to_come(self) -> int:
        """The most passes that remain for its run: each new token but the last begins one."""
        generation = self.session.generation
        assert generation is not None
        return generation.max_new_tokens - len(generation.new_tokens(self.session.tokens))

    def allocate(self) -> bool:
        """Allocate the pages of its pending tokens. False without room: its own pass evicts others."""
        cache = self.session.cache
        try:
            cache.allocate(cache.length, len(self.session.tokens))
        except SlabFull:
            return False
        return True

    def take(self, logits_1V: Tensor, layers: int) -> None:
        """Take a row of shared logits as its own pass's."""
        self.outcome = Completed(logits_1TV=logits_1V[:, None].clone(), layers_run=layers)


def driven(
    step: Generator[None, None, Tensor], should_yield: Callable[[], bool]
) -> Generator[Blocked | None, None, Tensor]:
    """Run a shared pass to its end, yielding between its layers."""
    while True:
        try:
            next(step)
        except StopIteration as done:
            logits_BV: Tensor = done.value
            return logits_BV
        if should_yield():
            yield None


def drawn(seats: Sequence[Seat]) -> Seat:
    """Draw the seat to compute again alone, by the first one's seed and length."""
    session = seats[0].session
    assert session.generation is not None
    return random.Random(session.generation.sampler.sampling.seed + session.cache.length).choice(seats)


def rechecked(
    forward: Forward, seat: Seat, shared_V: Tensor, should_yield: Callable[[], bool]
) -> Generator[Blocked | None, None, bool]:
    """Run the pass of a drawn seat alone and record the difference of its shared row. Return False where that exceeds
    rounding. An outdated seat has no outcome. Raises SlabFull and OutOfDeviceMemory."""
    session, plan = seat.session, make_plan(yields=should_yield)
    frame = session.frame
    assert frame is not None
    session.cache.reserve(frame.committed, frame.end, once=True)  # its rows continue in columns
    while seat.open:
        outcome = forward.enter(frame, plan, session.cache, session.saved_states, lambda kept: None)
        if isinstance(outcome, Completed):
            seat.outcome = replace(outcome, layers_run=forward.layers)
            seat.difference = float(difference(shared_V, outcome.logits_1V[0]).abs().max())
            return equal_but_for_rounding(shared_V[None], outcome.logits_1V, forward.model.dtype)
        assert isinstance(outcome, Yielded)
        frame = outcome.frame
        yield None
    return True


# The prompts of several runs in shared passes, sized so that a section of one keeps no other session waiting long. One
# row of those that begin together is computed again alone, first of all: the first time, when one of them is longer
# than any at earlier checks, and whenever at least CHECKED_OF more prompts have come. If it differs by more than
# rounding, none of them is shared, and none in this engine any more.

PASSES: Final = 3  # before the runs that generate have their turn
CHECKED_OF: Final = 64  # shared prompts, of which one is computed again alone
Asking = Generator[Blocked | None, None, None]


class SharedPrompts:
    """Runs the prompts of seats together, with `held` bytes of that part of the budget. `why_not` is why it stopped."""

    def __init__(
        self, forward: Forward, should_yield: Callable[[], bool], memory: KeptMemory, budget: Budget, by: object
    ) -> None:
        self._forward, self._should_yield, self._memory = forward, should_yield, memory
        self._budget, self._by = budget, by
        self._sections = Sections(forward)
        self.held = 0
        self.why_not: str | None = None
        self._unchecked, self._longest_checked = 0, 0

    def run(self, seats: Sequence[Seat]) -> Generator[Blocked | None, None, Sequence[Seat]]:
        """Answer the first of these seats, as many as PASSES take; return the others."""
        if not seats:
            return ()
        yield from self._sections.prove()
        most = self._sections.tokens()
        now = _first(seats, PASSES * most)
        lengths = [len(seat.session.tokens) for seat in now]
        numbers = batches_of(lengths, _even(lengths, most), self._forward.frequencies)
        batches = [[now[n] for n in batch] for batch in numbers]
        together = [seat for batch in batches if len(batch) > 1 for seat in batch]
        first = self._drawn(together)
        batches.sort(key=lambda batch: first not in batch)
        for batch in batches:
            if self.why_not is None:
                yield from self._batch(batch, first)
        return seats[len(now) :]

    def _drawn(self, together: Sequence[Seat]) -> Seat | None:
        """Return the seat whose prompt is computed again alone, if due."""
        self._unchecked += len(together)
        longest = max((len(seat.session.tokens) for seat in together), default=0)
        if not together or (self._unchecked < CHECKED_OF and longest <= self._longest_checked):
            return None
        self._unchecked, self._longest_checked = 0, max(longest, self._longest_checked)
        return drawn(together)

    def _batch(self, seats: Sequence[Seat], first: Seat | None) -> Asking:
        seats = [seat for seat in seats if seat.open and seat.allocate()]
        if len(seats) < 2:
            return
        prompts = [seat.session.tokens for seat in seats]
        longest = max(map(len, prompts))
        with ExitStack() as lent:
            try:
                columns = lent.enter_context(self._columns(seats, longest))
                lent.enter_context(self._taken(self._sections.kept_bytes(len(seats) * longest)))
            except SlabFull:
                return
            logits_BV = yield from driven(prompt_logits(self._sections, columns, prompts), self._should_yield)
            if first in seats and first is not None:
                right = yield from rechecked(self._forward, first, logits_BV[seats.index(first)], self._should_yield)
                if not right:
                    self.why_not = "a prompt computed with others differed from the same computed alone"
                    return
            self._answer(seats, columns, logits_BV)

    @contextmanager
    def _columns(self, seats: Sequence[Seat], longest: int) -> Iterator[Columns]:
        """Lend columns for the prompts of a batch. Raises SlabFull."""
        memory = self._memory.take(len(seats) * longest)
        self.held += memory.nbytes
        try:
            yield Columns(memory, [0] * len(seats), longest)
        finally:
            self.held -= memory.nbytes
            self._memory.give_back(memory)

    @contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        """Take so many bytes inside this block. Raises SlabFull."""
        self._budget.take(size, by=self._by)
        self.held += size
        try:
            yield
        finally:
            self.held -= size
            self._budget.give_back(size)

    def _answer(self, seats: Sequence[Seat], columns: Columns, logits_BV: Tensor) -> None:
        for line, seat in enumerate(seats):
            if seat.open and seat.outcome is None:
                columns.put(line, seat.session.cache, len(seat.session.tokens))
                seat.take(logits_BV[line : line + 1], self._forward.layers)


def _even(lengths: Sequence[int], most: int) -> int:
    """Return the number of tokens of equal batches, at most so many: a small last one costs more a token, and others
    wait less for equal ones."""
    longest = max(lengths)
    lines = math.ceil(len(lengths) / math.ceil(len(lengths) * longest / most))
    return min(most, lines * longest)


def _first(seats: Sequence[Seat], tokens: int) -> Sequence[Seat]:
    """Return the first seats, with so many tokens in all; at least one."""
    total = 0
    for number, seat in enumerate(seats):
        total += len(seat.session.tokens)
        if total > tokens:
            return seats[: max(1, number)]
    return seats
