"""The limit holds at every moment: the tensors that a stop keeps have their room before the pass is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.residency import eviction
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.replies import Finished, Paused
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.residency.evicting import nothing_left
from tests.families import build

PROMPT = tokens(120)
SPARE = 24 << 10  # the logits and the generator that every pass leaves, and a page
SITES = ("resid_post.4", "mlp_pre.3", "pattern.2", "z.5", "embed", "resid_post.7", "logits")


class Highest(Budget):
    """The most that `taken` ever was."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "taken":
            self.__dict__["most"] = max(value, self.__dict__.get("most", 0))


def watched(family: str, room: int, **config: Any) -> Desk:
    """An engine that has so many bytes for sessions, and remembers the most that was taken of them."""
    model = build(family, attention="eager" if family == "llama" else None)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    desk = build_desk(model, device_memory=weights + room, **config)
    for slab in desk.engine.slabs:
        slab.shrink()
        slab.segments.poison, slab.segments.segment_slots = True, 1
    desk.engine.budget.__class__ = Highest
    return desk


def worked_with(desk: Desk, name: str, site: str, prompt: tuple[int, ...] = PROMPT) -> tuple[list[int], torch.Tensor]:
    """Stop a session under a rule and a watch, edit it where that can be done, fork it, go back, run it to the end."""
    desk.open(name)
    desk.steer("resid_post.1", name=name)
    desk.ask(ask.Watch(session=name, site="resid_post.2"))
    desk.stop_at(site, "step < 2", name)
    assert isinstance(desk.run(prompt, 3, name), Paused)
    if site != "logits":
        desk.edit(Scale(factor=0.9), name)
    desk.fork(name + "'", name)
    assert isinstance(desk.resume(name), Paused)
    desk.step(1, name=name)
    desk.back(1, by="token", name=name)
    desk.clear(name)
    assert isinstance(desk.resume(name, free=True), Finished)
    assert isinstance(desk.resume(name + "'", free=True), Finished)
    return desk.session(name).tokens[:], desk.logits(name)


@pytest.mark.parametrize(("family", "room", "sites"), [("llama", 800 << 10, SITES), ("mamba2", 400 << 10, SITES[::5])])
def test_the_limit_holds_at_every_moment_wherever_passes_stop(family: str, room: int, sites: tuple[str, ...]) -> None:
    desk, roomy = watched(family, room), watched(family, 1 << 28)
    budget: Any = desk.engine.budget
    for number, site in enumerate(sites):
        told = worked_with(desk, f"s{number}", site)
        expected = worked_with(roomy, f"s{number}", site)
        assert told[0] == expected[0]
        assert torch.equal(told[1], expected[1])
        assert budget.most <= budget.limit, site
    assert sum(tier.pages for tier in desk.engine.tiers.statistics()), "otherwise nothing had to leave"
    desk.close_all()
    roomy.close_all()
    assert nothing_left(desk)


def test_a_pass_that_finds_no_room_for_its_stop_is_entered_again_and_recorded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pattern is much more than a pass is expected to keep: others have to leave when it is met, and not at rest."""
    monkeypatch.setattr(eviction, "WRITE_THROUGH_SECONDS", float("inf"))
    desk = watched("llama", 400 << 10)
    for name in "bcd":
        desk.open(name)
        desk.run(tokens(100), 1, name)
    desk.open("a")
    desk.ask(ask.Watch(session="a", site="resid_post.2"))
    number = desk.steer("resid_post.1").rule.number
    desk.stop_at("pattern.6")
    before = desk.engine.counters.layers_run
    told = desk.run(PROMPT, 2)
    assert isinstance(told, Paused)
    assert desk.engine.counters.layers_run - before < desk.engine.forward.layers, "counters count what led to the stop"
    assert desk.ask(ask.ReadWatch(session="a", site="resid_post.2")).watch.passes == 1
    assert desk.session().rules[number].passes_met == 1
    budget: Any = desk.engine.budget
    assert budget.most <= budget.limit
    assert any(desk.describe(name).residency == "host" for name in "bcd")
    desk.close_all()


@pytest.mark.parametrize("site", ["pattern.2", "mlp_pre.3"])
@pytest.mark.parametrize("more", [0, 150 << 10])
def test_a_lone_stop_fits_in_its_pages_and_what_it_keeps_however_much_more_there_is(site: str, more: int) -> None:
    """A working copy is as long as there is room when a pass begins, before it is known what its stop keeps."""
    desk, roomy = watched("llama", 1 << 28), watched("llama", 1 << 28)
    for one in (roomy, desk):
        one.open()
        one.stop_at(site)
        assert isinstance(one.run(PROMPT, 2), Paused), one.engine.budget.held()
        held = one.engine.budget.held()
        desk.engine.budget.limit = held["pages"] + held["stops and states"] + SPARE + more
    assert torch.equal(desk.value(), roomy.value())
    budget: Any = desk.engine.budget
    assert budget.taken <= budget.limit
    roomy.close_all()
    desk.close_all()
