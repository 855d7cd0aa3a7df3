"""Whether the next positions of several lines can share a pass in this family: proved once, on short lines of ours."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward, out_of_memory
from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.pass_controller import Completed
from djinn_jupyter.engine.forward.plan import make_plan
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.model.loading.rotary import depend_on_length
from djinn_jupyter.engine.wavefront.columns import Columns
from djinn_jupyter.engine.wavefront.next_position import next_logits
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.shared_cache import why_not_several

LENGTHS: Final = ((9, 5, 7), (6, 6, 6))
FEW: Final = 64  # ids of any vocabulary


def why_not(forward: Forward, new_cache: Callable[[], PagedCache]) -> str | None:
    """Return the reason, None where they can. Raises SlabFull. Its pages belong to no session, so that it may not
    yield: it takes the time of a dozen passes over a few tokens."""
    reason = why_not_several(forward)
    if depend_on_length(forward.model):
        reason = "its rotary frequencies depend on a line's length"
    for lengths in LENGTHS if reason is None else ():
        with ExitStack() as freed:
            caches = [new_cache() for _ in lengths]
            for cache in caches:
                freed.callback(cache.free)
            reason = reason or _trial(forward, caches, lengths)
    return reason


def _trial(forward: Forward, caches: Sequence[PagedCache], lengths: Sequence[int]) -> str | None:
    """Compare lines among others, the first of them NaN, with a pass of their own."""
    generator = torch.Generator().manual_seed(sum(lengths))
    lines = [tuple(torch.randint(FEW, (n + 1,), generator=generator).tolist()) for n in lengths]
    for line, cache in zip(lines, caches, strict=True):
        _passed(forward, line[:-1], cache)
    columns = Columns(forward.geometry, caches, forward.device)
    for run in (run for group in columns.runs for run in group):
        for rows in run:
            rows[:, 0].fill_(torch.nan)
    try:
        together = logits_of(next_logits(forward, columns, [line[-1] for line in lines]))
    except REFUSALS as error:
        if out_of_memory(error):
            raise  # this says nothing of the family
        return f"its layers refuse several lines ({first_line(error)})"
    for number in range(1, len(lines)):
        alone_V = _passed(forward, lines[number][-1:], caches[number])
        if not equal_but_for_rounding(together[number][None], alone_V[None], forward.model.dtype):
            return "its layers give a line other values among others than alone"
    return None


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
