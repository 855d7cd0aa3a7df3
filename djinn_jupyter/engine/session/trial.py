"""The trial of shared passes: in this family several lines may share their prompts and next positions where short lines
of ours prove it, once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.pass_controller import Completed
from djinn_jupyter.engine.forward.plan import make_plan
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.model.loading.rotary import depend_on_length
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.columns import Columns
from djinn_jupyter.engine.wavefront.next_position import next_logits
from djinn_jupyter.engine.wavefront.prompts import prompt_logits
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.sections import Sections
from djinn_jupyter.engine.wavefront.shared_cache import why_not_several

LENGTHS: Final = ((9, 5, 7), (6, 6, 6))
FEW: Final = 64  # ids of any vocabulary
PARTS: Final = (slice(None, -1), slice(-1, None))  # of a line: its prompt, and its next token


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reasons for which prompts, and next positions, cannot share passes; None where they can."""

    prompts: str | None = None
    next_positions: str | None = None


def why_not(forward: Forward, new_cache: Callable[[], PagedCache]) -> WhyNot:
    """Return the reasons against sharing. Raises SlabFull. Its pages belong to no session, so that it may not yield: it
    takes the time of two dozen passes over a few tokens."""
    reason = why_not_several(forward)
    if depend_on_length(forward.model):
        reason = "its rotary frequencies depend on a line's length"
    found = WhyNot(prompts=reason, next_positions=reason)
    for lengths in LENGTHS if reason is None else ():
        with ExitStack() as freed:
            caches = [new_cache() for _ in (*lengths, *lengths)]
            for cache in caches:
                freed.callback(cache.free)
            here = _trial(forward, caches[: len(lengths)], caches[len(lengths) :], lengths)
        found = WhyNot(
            prompts=found.prompts or here.prompts, next_positions=found.next_positions or here.next_positions
        )
    return found


def _trial(
    forward: Forward, shared: Sequence[PagedCache], alone: Sequence[PagedCache], lengths: Sequence[int]
) -> WhyNot:
    """Compare lines among others, the first of them NaN, with passes of their own: their prompts, then the next
    position behind the rows that these left, where they are right, else behind those of passes of their own."""
    generator = torch.Generator().manual_seed(sum(lengths))
    lines = [tuple(torch.randint(FEW, (n + 1,), generator=generator).tolist()) for n in lengths]
    prompts, following = (
        [_passed(forward, line[at], cache) for line, cache in zip(lines, alone, strict=True)] for at in PARTS
    )
    of_prompts = _why_other(forward, lambda: _prompts(forward, lines, shared), prompts)
    if of_prompts is not None:
        for line, cache in zip(lines, shared, strict=True):
            cache.free()
            _passed(forward, line[:-1], cache)
    return WhyNot(
        prompts=of_prompts, next_positions=_why_other(forward, lambda: _next(forward, lines, shared), following)
    )


def _why_other(forward: Forward, together: Callable[[], Tensor], alone: Sequence[Tensor]) -> str | None:
    """Return why logits [B, V] computed together are not those of each line alone; None where they are."""
    try:
        ours_BV = together()
    except REFUSALS as error:
        if out_of_memory(error):
            raise  # this says nothing of the family
        return f"its layers refuse several lines ({first_line(error)})"
    if not equal_but_for_rounding(ours_BV[1:], torch.stack(list(alone[1:])), forward.model.dtype):
        return "its layers give a line other values among others than alone"
    return None


def _prompts(forward: Forward, lines: Sequence[tuple[int, ...]], caches: Sequence[PagedCache]) -> Tensor:
    prompts = [line[:-1] for line in lines]
    columns = Columns(forward.geometry, [0] * len(lines), max(map(len, prompts)), forward.device)
    logits_BV = logits_of(prompt_logits(Sections(forward), columns, prompts, spoilt=0))
    for number, (prompt, cache) in enumerate(zip(prompts, caches, strict=True)):
        cache.allocate(0, len(prompt))
        columns.put(number, cache, len(prompt))
    return logits_BV


def _next(forward: Forward, lines: Sequence[tuple[int, ...]], caches: Sequence[PagedCache]) -> Tensor:
    columns = Columns.of(forward.geometry, caches, forward.device)
    for run in (run for group in columns.runs for run in group):
        for rows in run:
            rows[:, 0].fill_(torch.nan)
    return logits_of(next_logits(forward, columns, [line[-1] for line in lines]))


def logits_of(step: Generator[None, None, Tensor]) -> Tensor:
    """Run a pass to its end without giving way."""
    while True:
        try:
            next(step)
        except StopIteration as done:
            logits: Tensor = done.value
            return logits


def _passed(forward: Forward, tokens: tuple[int, ...], cache: PagedCache) -> Tensor:
    frame = Frame(tokens=tokens, committed=cache.length, step=0)
    outcome = forward.enter(frame, make_plan(), cache, {}, lambda kept: None)
    assert isinstance(outcome, Completed)
    return outcome.logits_1V[0]
