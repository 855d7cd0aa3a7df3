"""The calls of a layer that a sweep's lines share: even ones, of as many rows as earlier ones taught, beside a base
line that runs once; what packs them leaves the table of attention functions as it was."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface

from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes import wavefront
from djinn_jupyter.engine.passes.packing import FunctionEntry, attention_as
from djinn_jupyter.engine.passes.sections import SectionedCall
from djinn_jupyter.engine.passes.wavefront import FIRST_ROWS, SLOW_CALLS, TOO_SLOW, CallPlan, CallSize, Wavefront
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine.together import Together
from tests.device import DEVICE
from tests.engine.desk import desk_of, tokens
from tests.engine.plain import plain_of
from tests.engine.sweeps.plain_sweep import layers_of
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values

HEADS = {"site": "z", "over": ("layer", "head")}  # of 4 heads; their lines have 7 rows


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_calls_are_even_and_the_last_rows_of_all_lines_share_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, lines = desk_of(family, layers=LAYERS), defaultdict[int, list[int]](list)
    called = Wavefront._called

    def noted(self: Any, layer: int, portions: Any) -> Any:
        lines[layer].append(sum(one.rows_BnD.shape[0] for one in portions))
        return called(self, layer, portions)

    exact = values(swept(desk, mode="exact", **HEADS))
    swept(desk, **HEADS)  # the family is tried
    monkeypatch.setattr(Wavefront, "_called", noted)
    monkeypatch.setattr(wavefront, "CallSize", partial(CallSize, rows=40))
    monkeypatch.setattr(CallSize, "note", lambda *call: None)
    fast = swept(desk, **HEADS)
    assert fast.mode == "fast"
    assert (values(fast) - exact).abs().max() < 2e-5
    assert lines == {0: [4], 1: [4, 4], 2: [4, 4, 4], 3: [16]}
    desk.close_all()


def test_what_a_call_keeps_between_its_sections_is_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, kept, taken = desk_of("gpt2", layers=LAYERS), list[int](), list[int]()
    step, take = SectionedCall._stepped, Reservation.take

    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = step(self, *args, **kwargs)
        kept.append(sum(tensor.nbytes for tensor in tensors_within(self.outputs)))
        return output

    swept(desk)  # the family is tried
    monkeypatch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would run lines singly
    monkeypatch.setattr(SectionedCall, "_stepped", stepped)
    monkeypatch.setattr(Reservation, "take", lambda room, size: taken.append(size) or take(room, size))
    assert swept(desk).mode == "fast"
    chunk = taken[-1]
    monkeypatch.setattr(Wavefront, "section_bytes", lambda *rows: 0)
    swept(desk)
    assert chunk - taken[-1] >= max(kept)
    most = max(kept)
    kept.clear()
    monkeypatch.setattr(wavefront, "MOST_KEPT", most // 2)
    swept(desk)
    assert max(kept) <= most // 2
    desk.close_all()


PLANS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=5)


@given(PLANS, st.lists(st.integers(1, 4), max_size=5))
def test_a_plan_is_followed_and_what_is_learned_comes_behind_it(
    plan: list[tuple[int, int]], learned: list[int]
) -> None:
    rows = [rows for rows, calls in plan for _ in range(calls)]
    followed = CallPlan(plan)
    assert [followed.next(9) for _ in rows] == rows
    assert [followed.next(one) for one in learned] == learned
    again = CallPlan(followed.made)
    assert [again.next(9) for _ in (*rows, *learned)] == [*rows, *learned]
    assert again.made == followed.made


def test_calls_that_take_too_long_here_end_the_plan() -> None:
    size = CallSize(plan=CallPlan([(500, 99)]))
    for seconds in (TOO_SLOW * 2, TOO_SLOW * 0.9, *[TOO_SLOW * 2] * SLOW_CALLS):
        assert size.of_next() == 500
        size.note(500, seconds)
    assert size.of_next() == 50 < FIRST_ROWS


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
    for number, (keys, kept_values) in bases[0].rows.of_layer.items():
        layer = cache.layers[number]
        kept = layer.keys.shape[2]  # of a layer with a window the last
        assert keys.shape[2] == kept_values.shape[2] == len(LONG)
        assert torch.equal(keys[:, :, -kept:], layer.keys)
        assert torch.equal(kept_values[:, :, -kept:], layer.values)
    desk.close_all()


def test_cells_of_rows_that_both_lines_have_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, compared = desk_of("llama", layers=LAYERS), list[bool]()
    same_bits = edits.same_bits
    monkeypatch.setattr(edits, "same_bits", lambda *parts: compared.append(same_bits(*parts)) or compared[-1])
    reply = swept(desk, mode="exact")
    assert compared == [False] * (LAYERS * 7)  # of 12 positions the first five are the same
    assert reply.computed == len(compared)
    desk.close_all()


def own(*args: Any) -> str:
    return "own"


def ours(*args: Any, own: Any) -> str:
    return f"in the place of {own()}"


@pytest.mark.parametrize("ends_by", [Leave, RuntimeError, None])
@pytest.mark.parametrize("listed", [True, False])
def test_the_table_is_as_it_was_however_a_layer_ends(listed: bool, ends_by: type[BaseException] | None) -> None:
    table = AttentionInterface()
    if listed:
        table["flat"] = own
    entry = FunctionEntry(table=table, key="flat", own=own, listed=listed)

    def call() -> None:
        with attention_as([entry], ours):
            assert table["flat"]() == "in the place of own"
            if ends_by is not None:
                raise ends_by

    if ends_by is None:
        call()
    else:
        with pytest.raises(ends_by):
            call()
    assert table.get("flat") is (own if listed else None)
