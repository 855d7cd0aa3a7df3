"""The step of the second run under pressure: a claim of what is right or wrong needs two."""

from __future__ import annotations

from djinn_evaluation.benchmarks.gpu.pressure import measured
from djinn_evaluation.benchmarks.results import Result
from djinn_evaluation.benchmarks.setting import Setting


def run(setting: Setting) -> Result:
    return measured("pressure-again", "pressure_again", setting)
