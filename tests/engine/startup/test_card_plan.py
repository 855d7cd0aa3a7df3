"""Layers on several devices: which go where, and what is refused in one sentence."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from djinn_jupyter.engine.memory.budget import Budget, Budgets, Part
from djinn_jupyter.engine.memory.weights.residence import WeightSizes
from djinn_jupyter.engine.model.loading.load import choose_devices
from djinn_jupyter.engine.process import weight_plan
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.process.weight_plan import plan_cards, spread
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, SlabFull, UsageError
from tests.engine.desk import build_desk
from tests.families import build
from tests.homes import DEVICES, HOMES, two_homes

CARDS = tuple(torch.device("cuda", number) for number in range(3))


def sizes(*layers: int, rest: int = 10) -> WeightSizes:
    return WeightSizes(total=rest + sum(layers), rest=rest, layers=layers)


def test_equal_cards_are_filled_alike_and_the_first_has_the_embedding_too() -> None:
    plan = plan_cards(sizes(*[10] * 9, rest=20), [(CARDS[0], 200), (CARDS[1], 200)])
    assert plan.homes == (CARDS[0],) * 4 + (CARDS[1],) * 5
    assert plan.free == {CARDS[0]: 140, CARDS[1]: 150}
    assert plan.line() == "Layers 0 to 3 on cuda:0, layers 4 to 8 on cuda:1; embedding and head on cuda:0"


def test_a_larger_card_has_more_layers() -> None:
    plan = plan_cards(sizes(*[10] * 12, rest=0), [(CARDS[0], 100), (CARDS[1], 300)])
    assert plan.homes.count(CARDS[0]) == 3


@given(st.lists(st.integers(1, 50), min_size=3, max_size=20), st.integers(0, 50), st.data())
def test_a_plan_fits_in_order_and_no_other_cut_of_two_is_fuller_at_most(
    layers: list[int], rest: int, data: st.DataObject
) -> None:
    rooms = data.draw(st.lists(st.integers(1, 400), min_size=2, max_size=2))
    allowed = list(zip(CARDS, rooms, strict=False))

    def fullest(cut: int) -> float:
        return max((rest + sum(layers[:cut])) / rooms[0], sum(layers[cut:]) / rooms[1])

    best = min(range(1, len(layers)), key=fullest)
    try:
        plan = plan_cards(sizes(*layers, rest=rest), allowed)
    except ModelDoesNotFit:
        assert fullest(best) >= 1
        return
    assert [device for device, _ in groupby(plan.homes)] == list(CARDS[:2])
    assert fullest(plan.homes.count(CARDS[0])) == pytest.approx(fullest(best))
    assert min(plan.free.values()) > 0


def test_weights_that_fill_a_card_are_refused_with_what_to_do() -> None:
    with pytest.raises(ModelDoesNotFit, match="name more devices"):
        plan_cards(sizes(*[60] * 4), [(CARDS[0], 100), (CARDS[1], 100)])
    with pytest.raises(ModelDoesNotFit, match="3 devices were named for 2 layers"):
        plan_cards(sizes(1, 1), [(card, 100) for card in CARDS])
    with pytest.raises(ModelDoesNotFit, match="on cuda:1, of 0 B there"):
        plan_cards(sizes(10, 10), [(CARDS[0], 100), (CARDS[1], 0)])


def test_weights_that_a_card_refuses_are_told_in_a_sentence() -> None:
    def refuse(tensor: torch.Tensor, home: torch.device) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        monkeypatch.setattr(weight_plan, "to_home", refuse)
        with pytest.raises(ModelDoesNotFit, match="does not fit on cpu:0,cpu:1: CUDA out of memory"):
            build_desk(build("llama"), devices=DEVICES, device_memory=64 << 20)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"devices": "cpu:0,cpu:1"}, "one device, cpu"),
        ({"devices": "cpu"}, "name two different GPUs"),
        ({"devices": "cpu,cpu", "device": "cpu"}, "not both"),
        ({"devices": "nothing,cpu"}, "is no device"),
    ],
)
def test_names_that_are_not_several_devices_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        choose_devices(EngineConfig(model="demo", **options))


def test_graphs_and_several_devices_are_refused_before_anything_is_loaded() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        with pytest.raises(UsageError, match="CUDA graphs run on one GPU"):
            open_engine(EngineConfig(model="absent", devices=DEVICES, cuda_graphs=True))


def test_a_family_whose_layers_hand_on_more_is_refused() -> None:
    model = build("gemma3n_text")
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        with pytest.raises(ModelRefused, match="hand on more than the hidden state"):
            build_desk(model, devices=DEVICES, device_memory=64 << 20)


def test_layers_that_share_a_weight_are_refused_on_two_devices() -> None:
    layers = [nn.Linear(2, 2) for _ in range(2)]
    layers[1].weight = layers[0].weight
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        with pytest.raises(ModelRefused, match="share a tensor"):
            spread(nn.Sequential(*layers), layers, HOMES)


class TestBudgets:
    def test_what_may_lie_anywhere_is_drawn_everywhere_or_nowhere(self) -> None:
        homes = {CARDS[0]: Budget(100), CARDS[1]: Budget(50)}
        both = Budgets(homes, (0.5, 0.5))
        both.join(self, Part(name="lines", held=lambda: 40, idle=lambda: 0, release=lambda: 0))
        both.take(40, by=self)
        assert [home.taken for home in homes.values()] == [40, 40]
        with pytest.raises(SlabFull, match="10 B are free"):
            both.take(20, by=self)
        with pytest.raises(SlabFull):
            both.set_aside(20, by=None)
        assert [(home.taken, home.aside) for home in homes.values()] == [(40, 0), (40, 0)]
        both.check()
        assert both.statistics().bytes_taken == 80

    def test_the_device_with_least_room_for_its_share_bounds_them_all(self) -> None:
        assert Budgets({CARDS[0]: Budget(100), CARDS[1]: Budget(60)}, (0.75, 0.25)).free == 133

    def test_one_overdrawn_device_has_to_be_relieved(self) -> None:
        homes = {CARDS[0]: Budget(100), CARDS[1]: Budget(50)}
        homes[CARDS[1]].record(70)
        both = Budgets(homes, (0.5, 0.5))
        assert (both.overdrawn, both.relieve()) == (20, 20)
