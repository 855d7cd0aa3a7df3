"""On a GPU pages take what the card has, less what a pass was measured to take. CUDA's allocator is a stand-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_evaluation.claims.verdicts import NEAR, PLATEAU, fit_on_the_card
from djinn_jupyter.engine.model.discovery.recording import spread_tokens
from djinn_jupyter.engine.process import weight_plan
from djinn_jupyter.engine.process import weight_plan as reserve
from djinn_jupyter.engine.system import device as device_limit
from djinn_jupyter.engine.system.config import EngineConfig
from tests.card import Card
from tests.families import build

CUDA = torch.device("cuda", 0)
GIB, MIB = 1 << 30, 1 << 20
WEIGHTS_13B, SESSION_13B = 26_031_728_640, 129 * 16 * 2 * 40 * 5120 * 2  # whole pages of 2,048 and 16 positions
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


def settled(card: Card, model: Any, monkeypatch: Patch, card_memory: int | None = None) -> tuple[int, list[str]]:
    """Return the bytes for pages beside the model's weights, and what was told."""
    card.install(monkeypatch)
    card.hold(sum(parameter.nbytes for parameter in model.parameters()))
    told: list[str] = []
    loaded: Any = type("Loaded", (), {"model": model, "device": CUDA})
    with card:
        pages = weight_plan._pages_left(EngineConfig(model="demo", card_memory=card_memory), loaded, told.append)
    return pages, told


def pass_over(model: Any, length: int) -> None:
    with torch.inference_mode():
        model(input_ids=spread_tokens(model, length)[None], use_cache=False, logits_to_keep=1)


def test_the_longest_prompt_fits_beside_full_pages(model: Any, monkeypatch: Patch) -> None:
    """And a card with a little less would not have held it: nothing more than a pass is kept free."""
    card = Card(64 * MIB, context=2 * MIB, kernels=MIB)
    pages, told = settled(card, model, monkeypatch)
    estimate = card.total - card.context - card.live  # what is told before the weights are loaded
    assert estimate * 3 // 4 <= pages < estimate - card.kernels
    assert "for pages; a pass over" in told[0]
    longest = reserve.longest_prompt(model)
    assert longest <= reserve.MEASURED_POSITIONS
    with card:
        card.hold(pages)
        pass_over(model, longest)
        card._empty()
        card.hold(card.total - card.in_use - (card.total - card.in_use) * 9 // 10)
        with pytest.raises(torch.OutOfMemoryError):
            pass_over(model, longest)


@pytest.mark.parametrize("imposed", [72, 80])
def test_thirteen_billion_parameters_plateau_where_the_paper_says(monkeypatch: Patch, imposed: int) -> None:
    """A pass over 4,096 positions takes 1.2 GiB here, far more than one of the shapes of 13B by arithmetic. What the
    driver counts with full pages is 77 of 80, or more, and never above the card."""
    card = Card(140 * GIB, context=int(0.5 * GIB), kernels=int(0.3 * GIB))
    card.install(monkeypatch)
    device_limit.impose(imposed * GIB, CUDA)
    card.loaded = card.kernels
    card.hold(WEIGHTS_13B)
    monkeypatch.setattr(reserve, "bytes_of_a_pass", lambda model, device: int(1.2 * GIB))
    pages, kept = reserve.pages_beside_a_pass(None, CUDA, imposed * GIB)
    assert kept == int(1.2 * GIB)
    run = {"capacity": imposed * GIB, "demand": WEIGHTS_13B + 50 * SESSION_13B, "asked": 50, "session": SESSION_13B}
    first = 1 + (pages - SESSION_13B) // SESSION_13B  # to leave: the one that runs has a working copy besides
    assert (1 - NEAR) * (fit_on_the_card(run) + 1) <= first
    card.hold(pages // SESSION_13B * SESSION_13B)
    assert card.in_use + kept <= imposed * GIB
    card.hold(pages % SESSION_13B + kept)
    assert imposed * GIB * PLATEAU <= card.in_use <= imposed * GIB


def test_a_prompt_longer_than_the_measured_one_has_its_share(model: Any, monkeypatch: Patch) -> None:
    card = Card(64 * MIB)
    card.install(monkeypatch)
    with card:
        whole = reserve.bytes_of_a_pass(model, CUDA)
        monkeypatch.setattr(reserve, "MEASURED_POSITIONS", reserve.longest_prompt(model) // 4)
        quarter = reserve.bytes_of_a_pass(model, CUDA)
    assert whole * 0.9 <= quarter <= whole * 1.2


@pytest.mark.parametrize("passes", [True, False], ids=["more than a quarter", "no room for the pass"])
def test_no_more_than_a_quarter_is_kept(model: Any, monkeypatch: Patch, passes: bool) -> None:
    def no_room(model: Any, device: Any) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(reserve, "bytes_of_a_pass", (lambda model, device: GIB) if passes else no_room)
    card = Card(64 * MIB)
    pages, _ = settled(card, model, monkeypatch)
    free = card.total - card.in_use
    assert pages == free - free // reserve.LARGEST_SHARE


def test_the_estimate_is_told_before_loading(monkeypatch: Patch) -> None:
    told: list[str] = []
    monkeypatch.setattr(weight_plan, "choose_devices", lambda config: [CUDA])
    Card(64 * MIB, context=2 * MIB).install(monkeypatch)
    assert weight_plan.foresee(EngineConfig(model="demo"), told.append) is None
    (line,) = told
    assert line.startswith(
        "7.19 MiB of weights in 62.0 MiB that are free: at most 54.8 MiB for pages, less what a pass"
    )


def test_an_imposed_card_bounds_what_the_allocator_may_take(monkeypatch: Patch) -> None:
    """Kernels that are loaded later are no page's: the allocator refuses earlier than the driver."""
    card = Card(140 * GIB, context=GIB)
    card.install(monkeypatch)
    device_limit.impose(80 * GIB, CUDA)
    assert reserve.room_on(CUDA, 80 * GIB) == 79 * GIB - device_limit.LOADED_LATER
    card.loaded = GIB
    assert reserve.room_on(CUDA, 80 * GIB) == 78 * GIB
    card.fraction = 1.0
    assert reserve.room_on(CUDA, None) == 138 * GIB
