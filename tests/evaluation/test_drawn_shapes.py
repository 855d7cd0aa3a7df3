"""Shapes with random weights: their widths, their layers, and the folder that has their weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.copies import WAYS
from djinn_evaluation.baselines.eager import ByHand
from djinn_evaluation.course import Course
from djinn_evaluation.streaming import sides
from djinn_evaluation.streaming.sides import DrawnShape, configuration_of, shrunk, that_fits
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB


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
