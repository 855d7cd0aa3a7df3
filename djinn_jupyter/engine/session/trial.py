"""The trial of shared passes: in this family several lines may share their prompts and next positions where short lines
of ours prove it, once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.pass_controller import Completed, Yielded
from djinn_jupyter.engine.forward.plan import make_plan
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.session.seats import driven
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.column_memory import ColumnMemory
from djinn_jupyter.engine.wavefront.columns import Columns, capacity_for
from djinn_jupyter.engine.wavefront.next_position import next_logits
from djinn_jupyter.engine.wavefront.prompts import prompt_logits
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.sections import Sections
from djinn_jupyter.engine.wavefront.shared_cache import why_not_batched
from djinn_jupyter.engine.wavefront.windows import why_not_in_columns

LENGTHS: Final = ((9, 5, 7), (6, 6, 6))
FEW: Final = 64  # ids of any vocabulary
PARTS: Final = (slice(None, -1), slice(-1, None))  # of a line: its prompt, and its next token
Logits = Generator[Blocked | None, None, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reasons for which prompts, and next positions, cannot share passes; None where they can."""

    prompts: str | None = None
    next_positions: str | None = None


class Trial:
    """The trial of one engine. `caches` are those of its lines while it is under way: their pages are no session's."""

    def __init__(self, forward: Forward, new_cache: Callable[[], PagedCache], should_yield: Callable[[], bool]) -> None:
        self._forward, self._new_cache, self._should_yield = forward, new_cache, should_yield
        self.caches: list[PagedCache] = []

    def why_not(self) -> Generator[Blocked | None, None, WhyNot]:
        """Return the reasons against sharing, after two dozen passes over a few tokens; gives way between their layers.
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
        """Have caches with the pages of lines of these lengths and one more token."""
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
        """Compare lines among others, the first of them NaN, with passes of their own: their prompts, then the next
        position behind the rows that these left, where they are right, else behind those of passes of their own."""
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
        """Return why logits [B, V] computed together are not those of each line alone; None where they are."""
        try:
            ours_BV = yield from together
        except REFUSALS as error:
            if out_of_memory(error):
                raise  # this says nothing of the family
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
