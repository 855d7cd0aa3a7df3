"""Many cells in one pass: which families can, proved on the model itself, and the metric of a chunk of lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import out_of_memory
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.sweeps.lines import LinesAlone, RunLine
from djinn_jupyter.engine.wavefront.layer_calls import ArgumentAxes
from djinn_jupyter.engine.wavefront.shared_cache import why_not_shared
from djinn_jupyter.engine.wavefront.wavefront import Line, Wavefront

LENGTH: Final = 9
START: Final = 3
ROUNDING: Final = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a row's norm; other shapes sum in another order
COARSE: Final = 5e-2
HEAD_ROWS: Final = 64
Looked = Generator[Blocked | None, None, None]


class Together:
    """Whether this model's layers can run many lines at once. Tested when the first sweep asks, on a short line."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.axes = runtime, ArgumentAxes()
        self._tested = False
        self._why_not: str | None = None

    def why_not(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Return why lines have to run one by one here, None if they need not."""
        if not self._tested:
            self._why_not = self._structure() or (yield from self._trial(alone))
            self._tested = True
        return self._why_not

    def _structure(self) -> str | None:
        forward = self.runtime.forward
        if forward.geometry.has_states:
            return "its layers keep recurrent states"
        if forward.anatomy.mappings or forward.anatomy.handed:
            return "its layers pass on more than the hidden state"
        if any(len(forward.anatomy.cache_layers_of(layer)) != 1 for layer in range(forward.layers)):
            return "not each of its layers has one layer of the cache"
        return why_not_shared(forward.model.config)

    def _trial(self, alone: LinesAlone) -> Generator[Blocked | None, None, str | None]:
        """Compare a line among others (one of NaN) with the same line by itself and with a pass of its own."""
        size = self.runtime.description.vocab_size
        tokens = tuple(torch.randint(size, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist())
        base = yield from alone.run(tokens, (), residuals=True)
        tap = alone.borders()[0]
        changed = base.residuals[0].clone()
        changed[0, START] *= -0.5
        exact_V = yield from alone.logits(base, tap, changed)
        rows = changed[0, START:]
        try:
            one, among = self._behind(base, [rows]), self._behind(base, [torch.full_like(rows, torch.nan), rows, -rows])
            logits = self.runtime.forward.lens(torch.stack([one[0], among[1]]))
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if out_of_memory(error):
                raise  # this says nothing of the family
            return f"its layers refuse several lines ({error})"
        yield None
        most = ROUNDING.get(rows.dtype, COARSE)
        if not all(_close(row_V, exact_V, most) for row_V in logits):
            return "its layers give a line other values among others than alone"
        return None

    def _behind(self, base: RunLine, rows: Sequence[Tensor]) -> dict[int, Tensor]:
        front = Wavefront(self.runtime.forward, base.tokens, base.residuals, self.axes)
        for _ in front.prepare():
            pass
        found: dict[int, Tensor] = {}
        lines = [Line(number=n, boundary=0, start=START, rows_nD=one) for n, one in enumerate(rows)]
        for found_or_none in front.run(lines):
            found = found_or_none or found
        return found


def values_of(
    runtime: Runtime, front: Wavefront, lines: Sequence[Line], metric: Callable[[Tensor], float]
) -> Generator[None, None, dict[int, float]]:
    """Return the metric of the logits [V] of each line's last position, by its number."""
    behind: dict[int, Tensor] = {}
    for found in front.run(lines):
        if found is None:
            yield None
        else:
            behind = found
    runtime.counters.count_layers(front.count())
    numbers = list(behind)
    values: dict[int, float] = {}
    for first in range(0, len(numbers), HEAD_ROWS):
        some = numbers[first : first + HEAD_ROWS]
        rows_nV = runtime.forward.lens(torch.stack([behind[number] for number in some]))
        values.update((number, metric(row_V)) for number, row_V in zip(some, rows_nV, strict=True))
        yield None
    return values


def _close(one: Tensor, other: Tensor, most: float) -> bool:
    a, b = one.to(torch.float32), other.to(torch.float32)
    return bool((a - b).norm() <= most * b.norm())
