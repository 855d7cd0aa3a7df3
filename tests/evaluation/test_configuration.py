"""Every key is known, typed, bounded and explained; a mistake is one sentence and stops at once."""

from __future__ import annotations

import pytest

from djinn_evaluation.configuration.reading import Section, explain, keys_of, parse, read, shipped_files, split
from djinn_evaluation.configuration.sections import (
    AgentsFile,
    CheckpointCost,
    ResumeLatency,
    Streaming,
    ValidationFile,
    Whitebox,
)
from djinn_jupyter.errors import UsageError

KINDS: dict[str, type[Section]] = {
    "whitebox": Whitebox,
    "pressure": Whitebox,
    "resume_latency": ResumeLatency,
    "checkpoint_cost": CheckpointCost,
    "validation": ValidationFile,
    "streaming": Streaming,
    "agents": AgentsFile,
}


def kind_of(file: str) -> type[Section]:
    return next(kind for name, kind in KINDS.items() if file.startswith(name))


@pytest.mark.parametrize("file", shipped_files())
def test_a_shipped_file_is_read(file: str) -> None:
    assert isinstance(read(file, kind_of(file)), kind_of(file))


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()), key=lambda kind: kind.__name__))
def test_every_key_is_explained(kind: type[Section]) -> None:
    for key in keys_of(kind):
        assert key.explanation.endswith("."), key.path
        assert key.path in explain(kind)


def test_the_original_files_mean_what_they_meant() -> None:
    gpt2, llama = read("whitebox_gpt2.yaml", Whitebox), read("whitebox_llama.yaml", Whitebox)
    assert (gpt2.model.num_layers, gpt2.experiment.breakpoints.layers, gpt2.duration) == (12, (3, 6, 9), 180)
    assert (llama.model.num_layers, llama.experiment.breakpoints.layers, llama.duration) == (40, (10, 20, 30), 300)
    assert llama.experiment.memory_pressure_test is not None
    assert llama.experiment.memory_pressure_test.num_sessions == 50
    assert gpt2.experiment.memory_pressure_test is None


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("experiment.breakpoints.layrs=[1]", "there is no key experiment.breakpoints.layrs. Did you mean"),
        ("modle.name=gpt2", "there is no key modle. Known keys"),
        ("experiment.num_trials=0", "experiment.num_trials: expected `int` >= 1"),
        ("experiment.num_trials=many", "experiment.num_trials: expected `int`, got `str`"),
        ("experiment.breakpoints.layers=[3, 6, 3]", r"names a layer twice: \[3, 6, 3\]"),
        ("experiment.breakpoints.layers=[12]", r"layers\[0\] is 12; the model has the layers 0 to 11"),
        ("experiment.activation_steering.steering_layer=40", "steering_layer is 40"),
        ("experiment.activation_steering.modification_type=rotate", "modification_type"),
        ("experiment.activation_steering.modification_factor=1", "changes nothing"),
        ("experiment.inference.context_tokens=513", "compare at most as many positions"),
        ("experiment.inference.token_accuracy_threshold=0", "token_accuracy_threshold"),
        ("model.source=elsewhere", "model.source"),
        ("validation.require_memory_pressure_success=true", "the part that it judges is not enabled"),
        ("duration=-1", "duration"),
        ("duration=.inf", "duration is inf"),
        ("hardware.vram_limit_gb=.nan", "hardware.vram_limit_gb"),
        ("model.dtype=int7", "model.dtype"),
        ("model", "--set takes key=value"),
        ("duration.minutes=3", "duration holds a value, not keys"),
    ],
)
def test_a_mistake_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        read("whitebox_gpt2.yaml", Whitebox, [setting])
    assert "\n" not in str(caught.value)


def test_a_missing_key_and_a_file_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"the key output_dir is missing"):
        parse("model: demo\nlayers: [1]\nmax_length: 8\n", ResumeLatency)
    with pytest.raises(UsageError, match="holds no keys"):
        parse("just words", ResumeLatency)
    with pytest.raises(UsageError, match="is no YAML"):
        parse("a: [1", ResumeLatency)
    with pytest.raises(UsageError, match=r"There is no configuration file 'absent\.yaml'"):
        read("absent.yaml", ResumeLatency)
    with pytest.raises(UsageError, match=r"'~nobody-here/x\.yaml' names no configuration file"):
        read("~nobody-here/x.yaml", ResumeLatency)


@pytest.mark.parametrize("version", ["1.0", "'1.0'"])
def test_a_version_is_written_with_and_without_quotes(version: str) -> None:
    found = read("validation_smoke.yaml", ValidationFile, [f"experiment.version={version}"])
    assert str(found.experiment.version) == "1.0"


def test_a_setting_wins_over_the_file() -> None:
    assert read("resume_latency_small.yaml", ResumeLatency, ["layers=[2, 3]", "repeat=1"]).layers == (2, 3)


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 5_000 + "x", "[" * 50_000 + "]" * 50_000])
def test_what_is_nested_without_end_is_refused_and_nothing_ends(text: str) -> None:
    with pytest.raises(UsageError, match="nests deeper than 64"):
        parse(text, Whitebox)
    with pytest.raises(UsageError, match="nests deeper than 64"):
        read("whitebox_small.yaml", Whitebox, [f"experiment.num_trials={text}"])
    with pytest.raises(UsageError, match="nests deeper than 64"):
        split([f"architecture.num_hidden_layers={text}"])
