"""A task that a model cannot do is refused in one sentence before an engine starts, where its shape is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation.serving import Shape, foretold
from djinn_evaluation.timing import resume_latency
from djinn_jupyter.errors import UsageError


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
