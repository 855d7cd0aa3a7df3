"""The files of the original system as they ship: every value as its users know it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djinn_evaluation.configuration.reading import read, shipped_files
from djinn_evaluation.configuration.sections import ValidationFile, Whitebox

L7, L70 = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf"
EXPERIMENT_3 = """
model.source transformers transformers transformers
model.name gpt2 meta-llama/Llama-2-13b-hf mistralai/Mistral-7B-v0.1
model.num_layers 12 40 32
experiment.num_trials 3 3 3
experiment.breakpoints.enabled true true true
experiment.breakpoints.layers [3,6,9] [10,20,30] [8,16,24]
experiment.inference.input_length 512 2048 -
experiment.inference.context_tokens 512 2048 -
experiment.inference.token_accuracy_threshold 95.0 95.0 95.0
experiment.activation_steering.enabled true true true
experiment.activation_steering.modification_type scale scale scale
experiment.activation_steering.modification_factor 0.9 0.9 0.9
experiment.activation_steering.steering_layer 6 20 16
experiment.concurrent_demo.enabled true true true
experiment.concurrent_demo.request_b_during_pause true true true
experiment.concurrent_demo.pause_duration_seconds 5 10 -
experiment.memory_pressure_test.enabled absent true -
experiment.memory_pressure_test.num_sessions absent 50 -
experiment.memory_pressure_test.session_pause_layer absent 20 -
validation.require_output_equivalence true true true
validation.require_steering_effect true true true
validation.require_concurrent_success true false -
validation.require_memory_pressure_success false true -
duration 180 300 -
"""
PHASE_4 = f"""
experiment.name phase4_validation_smoke phase4_validation_full
experiment.version "1.0" "1.0"
logit_equivalence.enabled true true
logit_equivalence.model_id {L7} {L70}
logit_equivalence.dtype float16 float16
logit_equivalence.num_samples 5 30
logit_equivalence.tolerance_norm 0.1 0.1
logit_equivalence.tolerance_max_diff 0.1 0.1
logit_equivalence.pass_if_predictions_match true true
pcie_flatline.enabled false true
pcie_flatline.model_id {L70} {L70}
pcie_flatline.dtype float16 float16
pcie_flatline.ring_buffer_gb 48 48
pcie_flatline.vram_limit_gb null 60
pcie_flatline.sample_duration_seconds 10 30
pcie_flatline.min_sustained_bandwidth_mb_per_s 20000 20000
pcie_flatline.sustained_ratio 0.8 0.8
agent_sleep_resume.enabled true true
agent_sleep_resume.model_id {L7} {L7}
agent_sleep_resume.dtype float16 float16
agent_sleep_resume.idle_threshold_seconds 1.0 1.0
agent_sleep_resume.sleep_duration_seconds 30.0 30.0
agent_sleep_resume.host_swap_pool_gb 16.0 32.0
agent_sleep_resume.max_retries 3 3
ring_buffer.capacity_gb 48 48
server.host localhost localhost
server.port 5556 5556
server.timeout_seconds 120 300
hardware.vram_limit_gb null 60
hardware.gpu_device null 0
hardware.enforce_vram_limit - true
logging.level INFO INFO
logging.save_results true true
logging.verbose - true
"""
FILES = {
    "whitebox_gpt2.yaml": (Whitebox, EXPERIMENT_3, 1),
    "whitebox_llama.yaml": (Whitebox, EXPERIMENT_3, 2),
    "whitebox_mistral.yaml": (Whitebox, EXPERIMENT_3, 3),
    "validation_smoke.yaml": (ValidationFile, PHASE_4, 1),
    "validation_full.yaml": (ValidationFile, PHASE_4, 2),
}


def value_at(file: Any, path: str) -> Any:
    for name in path.split("."):
        if file is None:
            return "absent"
        file = getattr(file, name)
    return list(file) if isinstance(file, tuple) else file


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_what_the_original_held(name: str) -> None:
    kind, table, column = FILES[name]
    file = read(name, kind)
    wanted = [(row.split()[0], row.split()[column]) for row in table.strip().splitlines()]
    expected = {path: msgspec.yaml.decode(value) for path, value in wanted if value != "-"}
    assert {path: value_at(file, path) for path in expected} == expected


def test_each_experiment_ships_a_small_file() -> None:
    experiments = ("whitebox", "pressure", "resume_latency", "checkpoint_cost", "validation", "streaming", "agents")
    assert {f"{name}_small.yaml" for name in experiments} | FILES.keys() <= {*shipped_files()}
