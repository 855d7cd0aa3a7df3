"""Layers on two devices: every pass has the bits of one device, and no tensor strays between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.model.hooks import gates
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes import edits, wavefront
from djinn_jupyter.engine.passes.columns import ColumnMemory, Columns
from djinn_jupyter.engine.passes.wavefront import CallSize
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import ModelRefused
from djinn_jupyter.methods.datasets.request import Collect, Collected, Score
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.paths.engine import path_lines
from djinn_jupyter.methods.sweep.request import Sweep, Swept
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from tests.engine.counting import LayerCount
from tests.engine.desk import Desk, Outcome, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import carry
from tests.engine.plain import generate, plain_of
from tests.engine.test_exact import NEW, PROMPT, stop_edit_and_go_back
from tests.families import build, enough_layers
from tests.homes import DEVICES, HOMES, HomesMeet, two_homes

pytestmark = pytest.mark.drawn

FAMILIES = ("llama", "jamba", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "deepseek_v32")))
EACH = 8 << 20  # bytes for weights and pages on each home
A, B = 17, 42
CLEAN = (*PROMPT[:5], *tokens(9, seed=2))
Built = tuple[Desk, LayerCount, Outcome]
Verb = Callable[[Desk, Path], list[Any]]


@pytest.fixture(scope="class")
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    """An engine on two homes, and what one device gives."""
    family, layers = request.param, enough_layers(request.param)
    model, plain = build(family, layers=layers), generate(plain_of(family, layers=layers), PROMPT, NEW)
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        desk = build_desk(model, devices=DEVICES, device_memory=EACH)
        yield desk, LayerCount(model, desk.engine.anatomy.layers), plain
        desk.close_all()


@pytest.fixture(scope="class")
def pair() -> Iterator[tuple[Desk, Desk]]:
    """The same model on one device and on two."""
    models = build("llama", layers=4), build("llama", layers=4)
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        yield build_desk(models[0]), build_desk(models[1], devices=DEVICES, device_memory=EACH)


@pytest.mark.parametrize("built", FAMILIES, indirect=True)
class TestExact:
    def test_an_uninterrupted_run_is_that_of_one_device(self, built: Built) -> None:
        desk, count, plain = built
        desk.open()
        with count.expect(*[NEW] * desk.layers):
            finished = desk.run(PROMPT, NEW)
        assert desk.outcome(finished) == plain
        assert {slab.device for slab in desk.engine.slabs if slab.pages_in_use} == set(HOMES)
        desk.close_all()

    @pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.slow), 2])
    def test_a_stop_about_the_crossing_changes_no_bit(self, built: Built, step: int) -> None:
        desk, count, plain = built
        crossing = next(layer for layer in range(desk.layers) if desk.engine.forward.home_at(layer) == HOMES[1])
        for boundary in (crossing - 1, crossing, crossing + 1):
            stop_edit_and_go_back(desk, count, plain, boundary, step)
            desk.close_all()

    @pytest.mark.parametrize("tier", ["host", "disk"])
    def test_a_stop_that_left_and_came_back_goes_on_bit_for_bit(self, built: Built, tier: str) -> None:
        desk, _, plain = built
        for layer in (1, desk.layers - 2):
            desk.open()
            desk.stop_at(f"resid_post.{layer}", "step == 1")
            desk.run(PROMPT, NEW)
            desk.swap_out(tier=tier)
            desk.settle()
            assert all(slab.segment_bytes == 0 for slab in desk.engine.slabs)
            desk.swap_in()
            assert desk.outcome(desk.resume()) == plain
            desk.close_all()

    def test_a_checkpoint_goes_on_under_another_placement(self, built: Built) -> None:
        desk, _, plain = built
        single = build_desk(build(desk.engine.model.config.model_type, layers=desk.layers))
        for one, other, site in ((single, desk, "resid_post.1"), (desk, single, f"mlp_out.{desk.layers - 1}")):
            one.open()
            one.stop_at(site, "step == 1")
            one.run(PROMPT, NEW)
            carry(one, other)
            assert other.outcome(other.resume()) == plain
            assert other.session().exactness == "exact"
            one.close_all()
            other.close_all()


def lens(desk: Desk, folder: Path) -> list[Any]:
    return list(desk.ask(ask.Lens(session=at(desk, "resid_post.2"), positions=(4,), tokens=(A,))).rows)


def attribution(desk: Desk, folder: Path) -> list[Any]:
    found = desk.ask(Attribute(session=at(desk, "resid_post.1"), tokens=(A, B), heads=True, ahead=True))
    return [found.logit, *found.contributions]


def effect(desk: Desk, folder: Path) -> list[Any]:
    desk.edit(name=at(desk, "z.3"))
    return [desk.logits_ahead().effect]


def patch(desk: Desk, folder: Path) -> list[Any]:
    at(desk, "resid_post.0", "b", CLEAN)
    desk.edit(PatchFrom(session="b", site="resid_post.0"), at(desk, "resid_post.3"), positions=(5,))
    return [desk.resume(free=True).tokens, desk.logits()]


def rule(desk: Desk, folder: Path) -> list[Any]:
    desk.steer("resid_post.3", name=desk.open())
    desk.steer("v.0")
    return [desk.run(PROMPT, NEW).tokens, desk.logits()]


def eager_pattern(desk: Desk, folder: Path) -> list[Any]:
    desk.ask(ask.SetAttention(session=desk.open(), attention="eager"))
    desk.stop_at("pattern.3")
    desk.run(PROMPT, NEW)
    seen = desk.value()
    desk.edit()
    return [seen, desk.resume(free=True).tokens, desk.logits()]


def sweep(desk: Desk, folder: Path, **fields: Any) -> list[Any]:
    asked = {"corrupted": PROMPT, "clean": CLEAN, "site": "resid_post", "over": ("layer", "position")}
    metric = {"metrics": (f"logit({A}) - logit({B})",)}
    swept = desk.ask(Sweep(session=desk.open(), **{**asked, **metric, **fields}))
    assert isinstance(swept, Swept), swept
    return [swept.mode, *(to_tensor(measured.values) for measured in swept.measured)]


def sweep_of_heads(desk: Desk, folder: Path) -> list[Any]:
    return sweep(desk, folder, site="z", over=("layer", "head"))


def exact_sweep(desk: Desk, folder: Path) -> list[Any]:
    return sweep(desk, folder, mode="exact")


def heads(desk: Desk, folder: Path) -> list[Any]:
    read = desk.ask(ReadHeads(session=desk.open(), lines=(PROMPT, CLEAN), patterns=True))
    return [to_tensor(read.scores).nan_to_num(), to_tensor(read.patterns)]


def collection(desk: Desk, folder: Path) -> list[Any]:
    place = {"folder": str(folder), "shard": 0, "first": 0, "last": True, "positions": (-1,), "mode": "exact"}
    prompts = (tokens(7), tokens(3), tokens(12))
    kept = desk.ask(Collect(session=desk.open(), prompts=prompts, sites=("resid_post.0", "resid_post.3"), **place))
    assert isinstance(kept, Collected), kept
    return [Path(kept.path).read_bytes()]


def fast_collection(desk: Desk, folder: Path) -> list[Any]:
    place = {"folder": str(folder), "shard": 0, "first": 0, "last": True, "positions": (-1, 0), "mode": "fast"}
    sites = ("embed", "z.0", "resid_post.0", "resid_post.1", "mlp_out.3", "resid_post.3")
    prompts = (tokens(7), tokens(3), tokens(12))
    kept = desk.ask(Collect(session=desk.open(), prompts=prompts, sites=sites, **place))
    assert (kept.mode, kept.notes) == ("fast", ())
    return [Path(kept.path).read_bytes()]


def fast_losses(desk: Desk, folder: Path) -> list[Any]:
    scored = desk.ask(Score(session=desk.open(), prompts=(PROMPT, CLEAN, tokens(9)), mode="fast"))
    assert (scored.mode, scored.notes) == ("fast", ())
    return [to_tensor(scored.values)]


def paths(desk: Desk, folder: Path) -> list[Any]:
    found = []
    for site, receivers in (("z", ("mlp_in.3",)), ("resid_pre", ("resid_pre.3", "v.3")), ("mlp_out", ("logits",))):
        found += sweep(desk, folder, site=site, over=("layer",), receivers=receivers)
        assert "fast" in found[-2:]
    return found


def shared_steps(desk: Desk, folder: Path) -> list[Any]:
    replies: list[Any] = []
    names = [desk.open(name) for name in "abc"]
    for length, name in enumerate(names, start=5):
        run = ask.Run(session=name, tokens=tokens(length), max_new_tokens=4, ignore_eos=True, mode="fast")
        desk.post(run, replies)
    desk.settle()
    assert all(reply.shared for reply in replies)
    return [len(replies), *(desk.session(name).tokens for name in names), *map(desk.logits, names)]


def at(desk: Desk, site: str, name: str = "a", prompt: tuple[int, ...] = PROMPT) -> str:
    """Run a new session to a stop at `site`. Return its name."""
    desk.stop_at(site, name=desk.open(name))
    assert isinstance(desk.run(prompt, NEW, name), told.Paused)
    return name


VERBS = (lens, attribution, effect, patch, rule, eager_pattern, sweep, sweep_of_heads, exact_sweep, paths, heads)
VERBS += (collection, fast_collection, fast_losses, shared_steps)


class TestVerbs:
    @pytest.fixture(autouse=True)
    def calls_of_one_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would share calls among fewer lines

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
    def test_a_verb_finds_on_two_homes_what_it_finds_on_one(
        self, pair: tuple[Desk, Desk], verb: Verb, tmp_path: Path
    ) -> None:
        found = []
        for number, desk in enumerate(pair):
            found.append(verb(desk, tmp_path / str(number)))
            desk.close_all()
        assert len(found[0]) == len(found[1])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other

    @pytest.mark.parametrize("back", [False, True], ids=["one-to-two", "two-to-one"])
    def test_a_journal_is_recomputed_under_another_placement(
        self, pair: tuple[Desk, Desk], back: bool, tmp_path: Path
    ) -> None:
        one, other = reversed(pair) if back else pair
        journal(one, tmp_path / "kept")
        one.stop_at("resid_post.2", "step == 1", name=one.open())
        for site in ("mlp_out.3", "resid_pre.3", "z.0"):
            one.stop_at(site, "step == 0")
        one.run(PROMPT, NEW)
        for _ in range(3):  # the first pass has an edit at each, in its recomputing too
            one.edit()
            one.resume()
        one.swap_out(tier="disk")
        one.settle()
        written(one)
        assert journal(other, crashed(tmp_path / "kept", tmp_path / "found")) == ("a",)
        assert other.session().exactness == "recomputed"
        other.ask(ask.AcceptRecomputed(session="a"))
        one.swap_in()
        assert other.outcome(other.resume(free=True)) == one.outcome(one.resume(free=True))
        forget(one)
        forget(other)


@pytest.mark.parametrize(
    ("module", "verb", "homes"),
    [
        (wavefront, sweep, {HOMES[1]}),
        (path_lines, paths, {*HOMES}),
    ],  # of a sweep: the keys and values of the last layer
    ids=["sweep", "paths"],
)
def test_a_layer_is_waited_for_where_it_runs(
    pair: tuple[Desk, Desk],
    module: Any,
    verb: Verb,
    homes: set[torch.device],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: set[torch.device] = set()
    monkeypatch.setattr(module, "require_alive", waited.add)
    verb(pair[1], tmp_path)
    assert waited == homes


def test_the_mask_of_shared_steps_is_where_the_model_makes_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page group may lie on any device: that of full attention, where most layers have windows."""
    layer = LayerGeometry(cache_layer=0, kind="full", kv_heads=1, key_dim=2, value_dim=2, dtype=torch.float32)
    with two_homes(monkeypatch):
        geometry: Any = SimpleNamespace(groups=(GroupGeometry.lay_out([replace(layer, device=HOMES[1])], 16),))
        mask = Columns(ColumnMemory(geometry, 8, HOMES[0]), [2, 1], 4).mask()
        assert mask.device == HOMES[0]


class Left(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        raise Leave


def test_a_pass_after_one_that_was_left_has_the_first_device_as_its_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(gates, "make_current", current.append)
    layers = [nn.Identity(), Left()]
    with two_homes(monkeypatch):
        gates.cross(layers, HOMES)
        hidden = torch.ones(1, device=HOMES[0])
        with pytest.raises(Leave):
            layers[1](layers[0](hidden))
        layers[0](hidden)
    assert current == [HOMES[0], HOMES[1], HOMES[0]]


def test_a_value_of_the_other_home_is_patched_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_homes(monkeypatch):
        source, part = (torch.full((1, 4), value, device=home) for value, home in zip((1.5, 0.0), HOMES, strict=True))
        after = edits.compute(part, PatchFrom(session="b", site="resid_post.0"), source=source)
        assert after.device == HOMES[1]
        assert after.tolist() == [[1.5] * 4]


# ------------------------------------------------------------------------------------------- what tells homes apart


def test_tensors_of_two_homes_do_not_meet() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        one, other = (torch.ones(2, device=home) for home in HOMES)
        assert (one.device, other.device) == HOMES
        assert (one + 1).device == HOMES[0]
        with pytest.raises(HomesMeet):
            one + other
        with pytest.raises(HomesMeet):
            other + torch.ones(2)
        with pytest.raises(HomesMeet, match="without to_home"):
            other.to(HOMES[0])


def test_a_layer_that_is_not_crossed_to_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode finds the tensor that strays: without the hooks the engine is not built."""
    monkeypatch.setattr("djinn_jupyter.engine.process.weight_plan.cross", lambda layers, homes: None)
    model = build("llama")
    with two_homes(monkeypatch), pytest.raises(ModelRefused, match="cpu:0, cpu:1"):
        build_desk(model, devices=DEVICES, device_memory=EACH)
