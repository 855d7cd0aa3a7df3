"""Many cells in one pass: which families can, proved on the model itself, and the metrics of a chunk of lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions.metric import Metrics, Values
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.call_size import CallPlan
from djinn_jupyter.engine.wavefront.inside import Inside
from djinn_jupyter.engine.wavefront.layer_calls import ArgumentAxes
from djinn_jupyter.engine.wavefront.packing import Packing
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.shared_cache import why_not_joined
from djinn_jupyter.engine.wavefront.wavefront import JoiningLine, Wavefront
from djinn_jupyter.methods.common.engine.lines import LinesAlone, RunLine
from djinn_jupyter.methods.sweep.engine.few_logits import FewLogits

LENGTH: Final = 9
STARTS: Final = (3, 6)
HEAD_ROWS: Final = 64
Way = Literal["in sections", "packed", "a start at a time"]
WAYS: Final[tuple[Way, ...]] = ("in sections", "packed", "a start at a time")
Looked = Generator[Blocked | None, None, None]


class Together:
    """The abilities of this model, tested when the first sweep asks, on a short line: layers that run lines at once,
    or lines of all starts in one call; a head that computes a few columns alone."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.axes = runtime, ArgumentAxes()
        self.packing: Packing | None = None
        self.columns = False
        self.few_logits = FewLogits(runtime.forward, runtime.counters)
        self._tested = False
        self._why_not: str | None = None
        self._inside: dict[tuple[Any, ...], bool] = {}

    def why_not(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Return why lines have to run one by one here, None if they need not."""
        if not self._tested:
            self._why_not = why_not_joined(self.runtime.forward) or (yield from self._trial(alone))
            self._tested = True
        return self._why_not

    def front(self, base: RunLine, plan: CallPlan) -> Wavefront:
        forward = self.runtime.forward
        return Wavefront(forward, base.tokens, base.residuals, base.rows, self.axes, self.packing, plan=plan)

    def logits(self, rows_nD: Tensor, tokens: Sequence[int] | None) -> Tensor:
        """Return logits behind rows of the last layer: of `tokens` alone where they are few and the head allows it."""
        forward = self.runtime.forward
        if tokens is None or not self.columns:
            rows_nV = forward.shared_lens(rows_nD)
            return rows_nV if tokens is None else rows_nV[:, list(tokens)]
        return forward.shared_lens(rows_nD, tokens)

    def has_inside(
        self, front: Wavefront, line: JoiningLine, alone: Callable[[], Generator[Blocked | None, None, Tensor]]
    ) -> Generator[Blocked | None, None, bool]:
        """Return whether lines such as this have among others the value that they have inside a layer. Tested when the
        first of its kind asks: `alone` returns what it is behind that layer, [1, S, D]."""
        assert line.inside is not None
        kind = (line.inside.tap.site.point, type(line.inside.tap.module))
        if kind not in self._inside:
            self._inside[kind] = self._agrees_inside(front, line, line.inside, (yield from alone()))
        return self._inside[kind]

    def _agrees_inside(self, front: Wavefront, line: JoiningLine, inside: Inside, after_1SD: Tensor) -> bool:
        spoiled = replace(line, inside=Inside(tap=inside.tap, value=torch.full_like(inside.value, torch.nan)))
        try:
            among_nD = front.behind(line.boundary, [spoiled, line, spoiled])[1]
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False
        return equal_but_for_rounding(among_nD, after_1SD[0, line.start :], among_nD.dtype)

    def _trial(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Compare two lines among others (some of NaN) with the same lines by themselves and with passes of their own:
        packed, in calls that are left before each step; if that fails packed; and if that fails a start at a time."""
        size = self.runtime.description.vocab_size
        tokens = tuple(torch.randint(size, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist())
        base = yield from alone.run(tokens, (), residuals=True, rows=True)
        self.few_logits.see(base.residuals[-1])
        changed, exact = [], []
        for start in STARTS:
            line = base.residuals[0].clone()
            line[0, start] *= -0.5
            changed.append(line)
            hidden = self.runtime.forward.anatomy.of_lines(line)
            exact.append((yield from alone.logits(base, alone.borders()[0], hidden)))
        why: str | None = None
        for way in self._ways():
            why = yield from self._tried(base, changed, exact, way)
            if why is None:
                break
        return why

    def _ways(self) -> Sequence[Way]:
        forward = self.runtime.forward  # a GPU runs behind its clock, and what streams would cross its link again
        whole = forward.device.type != "cpu" or forward.weights.streamed
        packed = bool(forward.anatomy.mappings)  # keys that layers share are handed to packed rows alone
        return WAYS[1 if whole else 0 : 2 if packed else 3]

    def _tried(
        self, base: RunLine, changed: Sequence[Tensor], exact: Sequence[Tensor], way: Way
    ) -> Generator[None, None, str | None]:
        """Return the fault of such lines, None where there is none; `packing` and `columns` are set then, and not
        before, for another sweep may begin between two steps."""
        packing: Packing | None = None
        try:
            if way != "a start at a time":
                packing = yield from self._learned(base, way == "in sections")
            rows = yield from self._behind(base, changed, packing)
            logits = self.runtime.forward.shared_lens(rows)
        except REFUSALS as error:
            if out_of_memory(error):
                raise  # this says nothing of the family
            return f"its layers refuse several lines ({first_line(error)})"
        if not equal_but_for_rounding(logits, torch.stack([*exact, *exact]), rows.dtype):
            return "its layers give a line other values among others than alone"
        yield
        self.packing, self.columns = packing, self._columns_agree(rows, logits)
        return None

    def _learned(self, base: RunLine, in_sections: bool) -> Generator[None, None, Packing]:
        packing = Packing(self.runtime.forward, in_sections)
        self._front_of(base, None).learn(packing, STARTS[0])
        yield
        return packing

    def _columns_agree(self, rows_nD: Tensor, rows_nV: Tensor) -> bool:
        """Return whether the head gives columns of its logits by themselves."""
        tokens = (rows_nV.shape[1] - 1, 2)
        try:
            some = self.runtime.forward.shared_lens(rows_nD, tokens)
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False
        whole = rows_nV[:, list(tokens)]
        return some.shape == whole.shape and equal_but_for_rounding(some[None], whole[None], rows_nD.dtype)

    def _behind(
        self, base: RunLine, changed: Sequence[Tensor], packing: Packing | None
    ) -> Generator[None, None, Tensor]:
        """Return the last rows of the changed lines among others, and then by themselves."""
        lines = [JoiningLine(number=n, boundary=0, start=at, rows_nD=changed[n][0, at:]) for n, at in enumerate(STARTS)]
        others = [
            JoiningLine(number=one.number + by, boundary=0, start=one.start, rows_nD=rows)
            for one in lines
            for by, rows in ((-100, torch.full_like(one.rows_nD, torch.nan)), (100, -one.rows_nD))
        ]
        front = self._front_of(base, packing)
        among = yield from _run(front, sorted([*others, *lines], key=lambda line: line.number))
        single: list[Tensor] = []
        for line in lines:
            alone = yield from _run(front, [line])
            single.append(alone[line.number])
        return torch.stack([*(among[line.number] for line in lines), *single])

    def _front_of(self, base: RunLine, packing: Packing | None) -> Wavefront:
        forward = self.runtime.forward
        return Wavefront(forward, base.tokens, base.residuals, base.rows, self.axes, packing, step_by_step=True)


def values_of(
    together: Together, front: Wavefront, lines: Sequence[JoiningLine], metrics: Metrics
) -> Generator[None, None, dict[int, Values]]:
    """Return the metrics at each line's last position, by its number."""
    behind = yield from _run(front, lines)
    together.runtime.counters.count_layers(front.count())
    numbers = list(behind)
    values: dict[int, Values] = {}
    for first in range(0, len(numbers), HEAD_ROWS):
        some = numbers[first : first + HEAD_ROWS]
        rows_nV = together.logits(torch.stack([behind[number] for number in some]), metrics.tokens)
        values.update((number, metrics.of(row_V, metrics.tokens)) for number, row_V in zip(some, rows_nV, strict=True))
        yield None
    return values


def _run(front: Wavefront, lines: Sequence[JoiningLine]) -> Generator[None, None, dict[int, Tensor]]:
    """Return each line's last row behind the last layer, by its number."""
    behind: dict[int, Tensor] = {}
    for found in front.run(lines):
        if found is None:
            yield
        else:
            behind = found
    return behind
