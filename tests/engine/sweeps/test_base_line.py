"""The base line of a sweep runs once: its keys and values are those of that pass, and the rows that it has in common
with the clean line are found by one look."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine.together import Together
from tests.device import DEVICE
from tests.engine.desk import desk_of, tokens
from tests.engine.plain import plain_of
from tests.engine.sweeps.plain_sweep import layers_of
from tests.engine.sweeps.test_sweeps import LAYERS, swept

LONG = tokens(40)  # three pages, and five windows of mistral


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_the_keys_and_values_of_the_base_are_those_of_its_one_pass(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, passes, bases = desk_of(family, layers=LAYERS), list[int](), list[RunLine]()
    fields = {"corrupted": LONG, "clean": (*LONG[:-2], 5, 6)}
    swept(desk, **fields)  # the family is tried
    front = Together.front
    monkeypatch.setattr(Together, "front", lambda self, base, plan: bases.append(base) or front(self, base, plan))
    attention: Any = next(
        module for name, module in layers_of(desk.engine.forward.model)[0].named_children() if "attn" in name
    )
    hook = attention.register_forward_pre_hook(lambda *call: passes.append(0))
    assert swept(desk, **fields).mode == "fast"
    hook.remove()
    assert len(passes) == 2  # of the clean line and of the base: cells are edited above the first layer
    with torch.inference_mode():
        cache = plain_of(family, layers=LAYERS)(torch.tensor([LONG], device=DEVICE), use_cache=True).past_key_values
    assert len(bases[0].rows.of_layer) == LAYERS
    for number, (keys, values) in bases[0].rows.of_layer.items():
        layer = cache.layers[number]
        kept = layer.keys.shape[2]  # of a layer with a window the last
        assert keys.shape[2] == values.shape[2] == len(LONG)
        assert torch.equal(keys[:, :, -kept:], layer.keys)
        assert torch.equal(values[:, :, -kept:], layer.values)
    desk.close_all()


def test_cells_of_rows_that_both_lines_have_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, compared = desk_of("llama", layers=LAYERS), list[bool]()
    same_bits = edits.same_bits
    monkeypatch.setattr(edits, "same_bits", lambda *parts: compared.append(same_bits(*parts)) or compared[-1])
    reply = swept(desk, mode="exact")
    assert compared == [False] * (LAYERS * 7)  # of 12 positions the first five are the same
    assert reply.computed == len(compared)
    desk.close_all()
