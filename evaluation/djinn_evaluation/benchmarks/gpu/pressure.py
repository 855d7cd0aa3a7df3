"""The step of the claims' run under pressure: the experiment `pressure` of the profile gpu, and the second time that a
claim needs. Below the usual size its file is read too, with keys for tiny weights.
"""

from __future__ import annotations

from typing import Any, Final

from djinn_evaluation.benchmarks.gpu.evaluation import results_of
from djinn_evaluation.benchmarks.gpu.serving import TINY_PAGE
from djinn_evaluation.benchmarks.gpu.shapes import per_position, weight_bytes
from djinn_evaluation.benchmarks.results import Result
from djinn_evaluation.benchmarks.setting import Setting
from djinn_jupyter.amounts import GIB

RUNS: Final = ("pressure", "pressure_again")
LIKELY: Final = 120  # seconds of one: a load of 20, 50 runs alone of 15, 50 stops of 30, as many resumes
TINY_SESSIONS, TINY_LENGTH = 50, 24 * TINY_PAGE


def run(setting: Setting) -> Result:
    return results_of("pressure", setting, RUNS, likely=LIKELY, tiny=_tiny)


def _tiny(config: dict[str, Any]) -> list[str]:
    """Return the keys for a shape of few layers: shorter sessions, of which a smaller device holds two thirds."""
    layers = config["num_hidden_layers"]
    pages = TINY_SESSIONS * TINY_LENGTH * per_position(config)
    return [
        f"model.num_layers={layers}",
        f"model.page_positions={TINY_PAGE}",
        f"experiment.breakpoints.layers=[{layers // 2}]",
        f"experiment.inference.input_length={TINY_LENGTH}",
        f"experiment.inference.context_tokens={TINY_LENGTH}",
        f"experiment.activation_steering.steering_layer={layers // 2}",
        f"experiment.memory_pressure_test.session_pause_layer={layers // 2}",
        f"hardware.vram_limit_gb={(weight_bytes(config) + 2 * pages // 3) / GIB}",
    ]
