"""Cache layers of a model's own class: their state beside rows is found by trying them, or they are refused."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, cache_utils

from djinn_jupyter.engine.memory.kv.own_layers import own_fields, why_not
from tests.engine.memory.kv.runs import pair, tokens


class Counting(cache_utils.DynamicSlidingWindowLayer):
    """Keeps running sums, one in a mapping."""

    def __init__(self) -> None:
        super().__init__(sliding_window=3)
        self.sums: dict[str, torch.Tensor | None] = {"keys": None}
        self.count = 0


class Moving(Counting):
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().update(key_states, value_states)


class Reordering(Counting):
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(key_states, value_states)
        return keys.flip(2), values


class Wider(Counting):
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cumulative_length + query_length, 0


class Holding(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.other = object()


class Indexed(cache_utils.DynamicIndexedLayer): ...


def test_what_a_class_adds_is_its_state() -> None:
    assert own_fields(Counting()) == ("sums", "count")
    assert why_not(Counting()) is None


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Moving(), "Moving returns other rows than a DynamicSlidingWindowLayer does"),
        (Reordering(), "Reordering returns other rows than a DynamicSlidingWindowLayer does"),
        (Wider(), "Wider returns other rows than a DynamicSlidingWindowLayer does"),
        (Holding(), "Holding keeps other things than tensors and numbers"),
        (Indexed(), "it extends neither of transformers' layers of keys and values"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_layer_that_pages_cannot_stand_in_for_is_refused(layer: Any, reason: str) -> None:
    found = why_not(layer)
    assert found is not None
    assert reason in found


@pytest.mark.skipif("unlimited_ocr" not in CONFIG_MAPPING, reason="this transformers has no such layer")
def test_a_layer_of_the_library_that_returns_other_rows_is_refused() -> None:
    module = import_module("transformers.models.unlimited_ocr.modeling_unlimited_ocr")
    found = why_not(module.UnlimitedOcrDynamicReferenceSlidingWindowLayer(4))
    assert found is not None
    assert "returns other rows than a DynamicSlidingWindowLayer does" in found


@pytest.mark.parametrize("family", ["deepseek_v4:sliding", "minimax_m3_vl_text:sparse"])
def test_a_fork_and_its_parent_go_their_own_ways(family: str) -> None:
    """Rows and what is beside them, beyond window and blocks; a layer of pages is not the library's from then on."""
    parent = pair(family)
    parent.step(tokens(21))
    child = parent.fork()
    for turn in range(9):
        parent.step(tokens(1, seed=10 + turn))
        child.step(tokens(1, seed=20 + turn))
    child.cache.drop_working()
    child.step(tokens(7, seed=3))
    child.cache.free()
    parent.steps(tokens(3, seed=6))
    made_by_the_library = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING.values()
    assert all(kind.__module__.startswith("transformers.") for kind in made_by_the_library)
