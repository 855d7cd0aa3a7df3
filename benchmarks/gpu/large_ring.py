"""The step of the large ring: 70B-shaped weights in 48 GiB, or as many layers as there is room for in their share."""

from __future__ import annotations

from benchmarks.gpu.ring import Budget, measured
from benchmarks.gpu.shapes import SEVENTY
from benchmarks.results import Result
from benchmarks.setting import Setting


def run(setting: Setting) -> Result:
    return measured(Budget(name="large_ring", architecture=SEVENTY, nbytes=48 << 30), setting)
