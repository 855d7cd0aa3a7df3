"""Files of experiments and shapes of models: read, shipped, drawn."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.copies import WAYS
from djinn_evaluation.baselines.eager import ByHand
from djinn_evaluation.configuration.reading import Section, explain, keys_of, parse, read, shipped_files, split
from djinn_evaluation.configuration.sections import (
    AgentsFile,
    CheckpointCost,
    ResumeLatency,
    Streaming,
    ValidationFile,
    Whitebox,
)
from djinn_evaluation.course import Course
from djinn_evaluation.serving import Shape, foretold
from djinn_evaluation.streaming import sides
from djinn_evaluation.streaming.sides import DrawnShape, configuration_of, shrunk, that_fits
from djinn_evaluation.timing import resume_latency
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB

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


def test_a_setting_wins_over_the_file() -> None:
    """A version is written with and without quotes."""
    assert read("resume_latency_small.yaml", ResumeLatency, ["layers=[2, 3]", "repeat=1"]).layers == (2, 3)
    for version in ("1.0", "'1.0'"):
        found = read("validation_smoke.yaml", ValidationFile, [f"experiment.version={version}"])
        assert str(found.experiment.version) == "1.0"


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 5_000 + "x", "[" * 50_000 + "]" * 50_000])
def test_what_is_nested_without_end_is_refused_and_nothing_ends(text: str) -> None:
    with pytest.raises(UsageError, match="nests deeper than 64"):
        parse(text, Whitebox)
    with pytest.raises(UsageError, match="nests deeper than 64"):
        read("whitebox_small.yaml", Whitebox, [f"experiment.num_trials={text}"])
    with pytest.raises(UsageError, match="nests deeper than 64"):
        split([f"architecture.num_hidden_layers={text}"])


def test_each_experiment_ships_a_small_file() -> None:
    experiments = ("whitebox", "pressure", "resume_latency", "checkpoint_cost", "validation", "streaming", "agents")
    assert {f"{name}_small.yaml" for name in experiments} <= {*shipped_files()}


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("whitebox", "model.num_layers=9", "model.num_layers is 9; demo has 8 layers."),
        ("pressure", "model.num_layers=9", "model.num_layers is 9; demo has 8 layers."),
        ("resume-latency", "layers=[1, 8]", "layers[1] is 8; demo has the layers 0 to 7."),
        ("checkpoint-cost", "layer=8", "layer is 8; demo has the layers 0 to 7."),
        ("checkpoint-cost", "neighbour_tokens=99999", "A prompt of 8 tokens and 99999 new ones do not fit"),
        ("resume-latency", "max_length=99999", "A prompt of 99999 tokens and 1 new ones do not fit"),
        ("whitebox", "experiment.inference.input_length=99999", "A prompt of 99999 tokens and 16 new ones do not fit"),
    ],
)
def test_a_model_that_cannot_is_not_started(
    name: str, setting: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def load(*asked: Any, **options: Any) -> Any:
        raise AssertionError("An engine was started.")

    monkeypatch.setattr(dj, "load", load)
    assert cli.main(["experiment", name, "--profile", "small", "--output-dir", str(tmp_path), "--set", setting]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"djinn: {sentence}")
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not [*tmp_path.glob("*.json"), *tmp_path.glob("report.*")]


@pytest.mark.parametrize("layers", [("1,4,6",), ("1", "4", "6"), ("[1, 4, 6]",)])
def test_layers_are_listed_as_the_old_scripts_had_them(
    layers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(resume_latency, "run", lambda course, file: seen.append(file.layers) or [])
    chosen = ("--output-dir", str(tmp_path), "--layers", *layers, "--repeat", "1")
    assert cli.main(["experiment", "resume-latency", "--profile", "small", *chosen]) == 0
    assert seen == [(1, 4, 6)]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("resume-latency", "--model", "demo", "--random-weights", "gpt2"), "--model or --random-weights, not both"),
        (("validation", "--model", "demo", "--random-weights", "gpt2"), "--model or --random-weights, not both"),
        (("validation", "--model", ""), "--model names nothing"),
        (("resume-latency", "--model", ""), "model: expected `str`"),
    ],
)
def test_a_model_is_named_once(asked: tuple[str, ...], sentence: str, tmp_path: Path, capsys: Any) -> None:
    name, *flags = asked
    assert cli.main(["experiment", name, "--profile", "small", "--output-dir", str(tmp_path / "out"), *flags]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_of_a_hub_name_nothing_is_foretold() -> None:
    assert foretold("somebody/elsewhere") == Shape(name="somebody/elsewhere")
    shape = foretold("somebody/elsewhere")
    shape.require_count(3)
    shape.require_layers({"layer": 99})
    shape.require_room(10**9, 1)


def test_a_model_within_a_larger_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"n_layer": 2, "n_positions": 16}}')
    assert (foretold(str(tmp_path)).layers, foretold(str(tmp_path)).positions) == (2, 16)
    with pytest.raises(UsageError, match="do not fit into the 16 positions"):
        foretold(str(tmp_path)).require_room(16, 1)


@pytest.mark.parametrize("name", ["Llama-2-13b-hf", "CodeLlama-34b-hf", "Llama-2-70b-hf"])
def test_a_divided_shape_keeps_its_groups_of_heads(name: str) -> None:
    whole = configuration_of(name)
    assert shrunk(whole, 1) == whole
    small = shrunk(whole, 10)
    assert small["num_attention_heads"] % small["num_key_value_heads"] == 0
    ratio = whole["num_attention_heads"] // whole["num_key_value_heads"]
    assert small["num_attention_heads"] // small["num_key_value_heads"] == ratio
    assert small["hidden_size"] % small["num_attention_heads"] == 0
    for key in ("hidden_size", "intermediate_size", "vocab_size"):
        assert small[key] == pytest.approx(whole[key] / 10, rel=0.06)


def test_a_shape_has_weights_in_a_folder_as_long_as_it_is_measured(tmp_path: Path) -> None:
    class Near:
        by_hand = ByHand()

        def ask(self, verb: str, **asked: Any) -> Any:
            return getattr(self.by_hand, verb)(**asked)

    hand: Any = Near()
    shape = DrawnShape(architecture="Llama-2-70b-hf", divide_widths=128, layers=4, dtype="float32")
    course = Course(folder=tmp_path, log=logging.getLogger("test"))
    with sides.subject(course, shape, hand) as found:
        assert found.name == "Llama-2-70b-hf, widths divided by 128, 4 layers with random weights"
        sizes = hand.ask("sizes", model=found.source, dtype="float32", threads=None)
        stored = sum(path.stat().st_size for path in Path(found.source).glob("*.safetensors"))
        assert (len(sizes["layer_bytes"]), sizes["weight_bytes"]) == (4, pytest.approx(stored, rel=0.05))
        by_hand = hand.by_hand
        by_hand.load(model=found.source, dtype="float32", threads=None)
        by_hand.stream([1, 2])
        weight = by_hand.model.model.layers[0].mlp.up_proj.weight
        assert len(set(map(tuple, weight.tolist()))) == len(weight), "no two rows are the same"
        beside = hand.ask("generate_and_copy", tokens=[1, 2, 3], new=3, mode="resident")
        longer = hand.ask("generate", tokens=[1, 2, 3], new=4, mode="resident")["tokens"]
        assert [*beside["tokens"], beside["alone_token"]] == longer, "asked for by itself it is the next token"
        assert beside["alone"] > 0
        ahead = hand.ask("generate", tokens=[1, 2, 3], new=4, mode="ahead")
        assert ahead["tokens"] == longer, "a layer that had not come would be another model"
        copied = hand.ask("copy")["copies"]
        assert {nbytes for nbytes, *_ in (*copied, *ahead["copies"])} == {sizes["layer_bytes"][1]}
        assert (len(copied), len(ahead["copies"])) == (2 * len(WAYS), 2 * 4 + 1), "of the next pass one is under way"
    assert not list(tmp_path.iterdir())


def test_a_shape_above_its_most_bytes_has_its_widths_divided_further() -> None:
    def divided(most: float | None) -> tuple[int, int]:
        shape = DrawnShape(architecture="Llama-2-70b-hf", divide_widths=5, layers=10, dtype="float32", weights_gb=most)
        divisor, found = shape.divided(weights.weight_bytes)
        assert found["num_hidden_layers"] == 10
        return divisor, weights.weight_bytes(found)

    assert divided(None)[0] == divided(2.0)[0] == 5
    divisor, nbytes = divided(0.6)
    assert divisor > 5
    assert nbytes <= 0.6 * GIB < divided(None)[1]
    with pytest.raises(UsageError, match="weights_gb"):
        divided(1e-9)


def test_as_many_layers_as_there_is_room_for() -> None:
    def nbytes(config: dict[str, Any]) -> int:
        return 100 + 10 * int(config["num_hidden_layers"])

    def layers(room: int) -> int:
        return int(that_fits("a shape", {"num_hidden_layers": 20}, room, nbytes)["num_hidden_layers"])

    assert [layers(300), layers(299), layers(181), layers(140)] == [20, 19, 8, 4]
    with pytest.raises(UsageError, match="4 layers of a shape do not fit"):
        layers(139)
