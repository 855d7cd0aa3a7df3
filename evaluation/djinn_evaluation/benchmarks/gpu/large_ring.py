"""The step of the large ring: 70B-shaped weights in 48 GiB, or as many layers as there is room for in their share."""

from __future__ import annotations

from djinn_evaluation.benchmarks.gpu.ring import Budget, measured
from djinn_evaluation.benchmarks.gpu.shapes import SEVENTY
from djinn_evaluation.benchmarks.results import Result
from djinn_evaluation.benchmarks.setting import Setting


def run(setting: Setting) -> Result:
    return measured(Budget(name="large_ring", architecture=SEVENTY, nbytes=48 << 30), setting)
