"""A model split among two ranks: every pass has the bits of that split, whatever stops or changes it on the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.kv.pages import GroupCache
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import (
    CheckpointRefused,
    EngineBroken,
    FingerprintsDiffer,
    InvalidEdit,
    OutOfDeviceMemory,
    UsageError,
)
from djinn_jupyter.methods.datasets.request import Collect
from djinn_jupyter.methods.graphs.request import MakeGraph
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale, Zero
from djinn_jupyter.wire.nouns import Sampling
from tests import saes
from tests.engine.added.adding import add, remove
from tests.engine.desk import Desk, Outcome, tokens
from tests.engine.parallel.ranked import MIDDLE, NEW, PROMPT, saved, split_desk, whole_desk
from tests.engine.persistence.carrying import moved, sent

pytestmark = pytest.mark.drawn

OTHER = tokens(9, seed=2)
NEAR = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path) -> Desk:
    return whole_desk(model)


@pytest.fixture(scope="module")
def ranked(model: Path) -> Iterator[Desk]:
    with split_desk(model, 2) as desk:
        yield desk


@pytest.fixture
def desk(ranked: Desk) -> Iterator[Desk]:
    yield ranked
    ranked.close_all()


@pytest.fixture(scope="module")
def plain(ranked: Desk) -> Outcome:
    """What an uninterrupted run of the split gives."""
    ranked.open("plain")
    outcome = ranked.outcome(ranked.run(PROMPT, NEW, name="plain"), "plain")
    ranked.close_all()
    return outcome


def points(desk: Desk) -> list[str]:
    return [f"{one.point}.{MIDDLE}" for one in desk.engine.description.points if one.layers and MIDDLE in one.layers]


def stopped(desk: Desk, site: str, step: int = 0, name: str = "a") -> None:
    desk.open(name)
    desk.stop_at(site, when=f"step == {step}", name=name)
    assert isinstance(desk.run(PROMPT, NEW, name=name), told.Paused)


class TestBits:
    def test_it_says_that_it_is_split(self, desk: Desk, whole: Desk) -> None:
        described = desk.engine.description
        assert described.notes == ("Each layer is split among 2 ranks; embedding, head and pages on cpu.",)
        assert described.parameters == whole.engine.description.parameters
        assert described.weight_bytes < whole.engine.description.weight_bytes
        assert all(check.passed for check in described.checks)

    def test_a_run_is_that_of_one_device_but_for_rounding(self, desk: Desk, whole: Desk, plain: Outcome) -> None:
        whole.open()
        alone = whole.outcome(whole.run(PROMPT, NEW))
        assert plain.tokens == alone.tokens
        torch.testing.assert_close(plain.logits, alone.logits, **NEAR)

    def test_at_every_point_a_stop_shows_the_whole_value_and_can_go_on(
        self, desk: Desk, whole: Desk, plain: Outcome
    ) -> None:
        """Stop, look, go on edited; go back, go on unedited."""
        sites = points(desk)
        assert sites == points(whole)
        assert {f"{point}.{MIDDLE}" for point in ("q", "k", "v", "q_rot", "k_rot", "pattern", "z", "mlp_post")} <= {
            *sites
        }
        for site in [*sites, f"model.layers.{MIDDLE}.mlp.gate_proj.output"]:
            stopped(whole, site)
            stopped(desk, site)
            torch.testing.assert_close(desk.value(), whole.value(), **NEAR)
            if desk.session().frame.tap.editable:  # type: ignore[union-attr]
                whole.edit()
                desk.edit()
                edited, likewise = desk.outcome(desk.resume()), whole.outcome(whole.resume())
                assert edited != plain, site
                torch.testing.assert_close(edited.logits, likewise.logits, **NEAR)
                desk.back()
            assert desk.outcome(desk.resume()) == plain, site

    def test_a_stop_in_a_decode_step(self, desk: Desk, plain: Outcome) -> None:
        stopped(desk, f"z.{MIDDLE}", step=2)
        desk.edit()
        assert desk.outcome(desk.resume()) != plain
        desk.back()
        assert desk.outcome(desk.resume()) == plain

    def test_an_edit_gives_the_same_bits_each_time(self, desk: Desk) -> None:
        outcomes = []
        for name in ("a", "b"):
            stopped(desk, f"mlp_post.{MIDDLE}", name=name)
            desk.edit(Scale(factor=0.5), name=name, positions=(-1,))
            outcomes.append(desk.outcome(desk.resume(name), name))
        assert outcomes[0] == outcomes[1]

    def test_a_rule_within_layers_gives_the_bits_of_an_edit_there(self, desk: Desk) -> None:
        desk.open()
        desk.steer(f"z.{MIDDLE}", when="step == 0")
        steered = desk.outcome(desk.run(PROMPT, NEW))
        stopped(desk, f"z.{MIDDLE}", name="b")
        desk.edit(name="b")
        assert steered == desk.outcome(desk.resume("b"), "b")

    def test_a_watch_within_layers_changes_nothing(self, desk: Desk, plain: Outcome) -> None:
        desk.open()
        desk.ask(ask.Watch(session="a", site=f"mlp_post.{MIDDLE}"))
        assert desk.outcome(desk.run(PROMPT, NEW)) == plain

    def test_sampling_with_a_seed(self, desk: Desk) -> None:
        drawn = Sampling(temperature=1.0, seed=5)
        desk.open()
        desk.open("b")
        first = desk.outcome(desk.run(PROMPT, NEW, sampling=drawn))
        desk.stop_at(2, name="b")
        desk.run(PROMPT, NEW, name="b", sampling=drawn)
        assert desk.outcome(desk.resume("b", free=True), "b") == first

    def test_a_condition_on_a_value_within_a_layer(self, desk: Desk, whole: Desk, plain: Outcome) -> None:
        for one in (desk, whole):
            one.open()
            one.stop_at(f"mlp_post.{MIDDLE}", when="step == 1 and norm > 0.01")
            assert isinstance(one.run(PROMPT, NEW), told.Paused)
        assert desk.outcome(desk.resume()) == plain

    def test_looks_at_a_stop(self, desk: Desk, whole: Desk, plain: Outcome) -> None:
        """Another site of the stopped pass, a site ahead, and what an edit does to its end."""
        seen = []
        for one in (desk, whole):
            stopped(one, f"resid_post.{MIDDLE}")
            found = one.value(f"z.{MIDDLE}"), one.value(f"mlp_post.{MIDDLE + 1}", ahead=True)
            one.edit(positions=(-1,))
            seen.append((*found, torch.tensor(one.logits_ahead().effect.kl)))
            one.ask(ask.RevertEdits(session="a"))
        for found, expected in zip(*seen, strict=True):
            torch.testing.assert_close(found, expected, **NEAR)
        assert desk.outcome(desk.resume()) == plain

    def test_scores_of_heads(self, desk: Desk, whole: Desk) -> None:
        read = []
        for one in (desk, whole):
            one.open()
            read.append(one.ask(ReadHeads(session="a", lines=(PROMPT,), patterns=True)))
        torch.testing.assert_close(to_tensor(read[0].scores), to_tensor(read[1].scores), equal_nan=True, **NEAR)
        torch.testing.assert_close(to_tensor(read[0].patterns), to_tensor(read[1].patterns), **NEAR)

    @pytest.mark.parametrize("point", ["resid_post", "mlp_post"])
    def test_features_of_an_added_module(self, desk: Desk, whole: Desk, tmp_path: Path, point: str) -> None:
        values = []
        for one in (desk, whole):
            one.open()
            width = next(found.features for found in one.engine.description.points if found.point == point)
            add(one, saes.saved(tmp_path / str(len(values)), saes.drawn(width)), f"{point}.{MIDDLE}")
            stopped(one, f"sae.{MIDDLE}", name="b")
            values.append(one.value(name="b"))
            one.edit(name="b")
            values[-1] = torch.cat([values[-1].flatten(), one.outcome(one.resume("b"), "b").logits])
            one.close_all()
            remove(one)
        torch.testing.assert_close(*values, **NEAR)


class TestSessions:
    def test_sessions_take_turns_with_their_rows(self, desk: Desk, plain: Outcome) -> None:
        stopped(desk, f"resid_post.{MIDDLE}", step=1)
        desk.open("b")
        other = desk.outcome(desk.run(OTHER, NEW, name="b"), "b")
        assert desk.outcome(desk.resume()) == plain
        desk.open("c")
        assert desk.outcome(desk.run(OTHER, NEW, name="c"), "c") == other

    def test_a_fork_and_its_parent(self, desk: Desk, plain: Outcome) -> None:
        stopped(desk, f"resid_post.{MIDDLE}", step=1)
        desk.fork("b")
        desk.edit(name="b")
        assert desk.outcome(desk.resume("b"), "b") != plain
        assert desk.outcome(desk.resume()) == plain

    @pytest.mark.parametrize("tier", ["host", "disk"])
    def test_a_session_that_left_the_device(self, desk: Desk, plain: Outcome, tier: str) -> None:
        stopped(desk, f"z.{MIDDLE}", step=1)
        desk.swap_out(tier=tier)
        assert desk.outcome(desk.resume()) == plain

    def test_rows_without_a_working_copy(self, desk: Desk, plain: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are gathered from pages at every layer, and dealt to the other rank each time."""
        monkeypatch.setattr(GroupCache, "prepare", lambda self, start, end, once=False: self.drop_working())
        desk.open()
        assert desk.outcome(desk.run(PROMPT, NEW)) == plain

    def test_a_line_goes_on_from_an_earlier_step(self, desk: Desk, plain: Outcome) -> None:
        desk.open()
        desk.run(PROMPT, NEW)
        desk.back(2, by="token")
        assert desk.outcome(desk.resume()) == plain

    def test_a_checkpoint_goes_on_in_the_same_split_alone(
        self, desk: Desk, whole: Desk, plain: Outcome, tmp_path: Path
    ) -> None:
        stopped(desk, f"z.{MIDDLE}", step=1)
        desk.ask(ask.SaveCheckpoint(session="a", name="kept"))
        desk.ask(ask.RestoreCheckpoint(session="b", name="kept"))
        assert desk.outcome(desk.resume("b"), "b") == plain
        with pytest.raises(CheckpointRefused, match=r"saved with tensor parallel 2.*--tensor-parallel 2"):
            whole.ask(ask.RestoreCheckpoint(session="b", name="kept"))

    def test_a_move_between_a_split_model_and_a_whole_one_is_refused_before_anything_is_written(
        self, desk: Desk, whole: Desk, plain: Outcome
    ) -> None:
        for one, other, said in ((desk, whole, "(2 here, 1 there)"), (whole, desk, "(1 here, 2 there)")):
            stopped(one, f"v.{MIDDLE}")
            with pytest.raises(FingerprintsDiffer, match=re.escape(f"differ in tensor parallel {said}")):
                sent(one, other)
            folder = one.engine.persistence.moves.folder.folder
            assert not folder.exists() or not list(folder.iterdir())
        assert desk.outcome(desk.resume()) == plain
        whole.close_all()

    def test_a_session_moves_between_two_models_that_are_split_alike(
        self, desk: Desk, model: Path, plain: Outcome
    ) -> None:
        """A rank that dies then ends the other engine, by its name."""
        stopped(desk, f"v.{MIDDLE}")
        with split_desk(model, 2) as other:
            moved(desk, other)
            assert "a" not in desk.engine.sessions
            assert other.outcome(other.resume()) == plain
            stopped(other, f"z.{MIDDLE}")
            (process,) = other.engine.ranks._processes  # type: ignore[union-attr]
            process.kill()
            process.wait()
            with pytest.raises(EngineBroken, match=rf"Rank 1 of 2, process {process.pid}, was killed by signal 9"):
                other.resume()


class TestLeaving:
    """A layer that is left on rank 0 is left on all, and the next pass is whole."""

    def test_an_edit_that_fails(self, desk: Desk, plain: Outcome) -> None:
        stopped(desk, f"z.{MIDDLE}")
        with pytest.raises(InvalidEdit):
            desk.edit(Zero(), positions=(99,))
        assert desk.outcome(desk.resume()) == plain

    @pytest.mark.parametrize("place", ["self_attn.o_proj", "mlp.gate_proj", "mlp.act_fn", "mlp.down_proj"])
    def test_memory_that_runs_out_within_a_layer(self, desk: Desk, plain: Outcome, place: str) -> None:
        module: Any = desk.engine.anatomy.layers[MIDDLE].get_submodule(place)
        desk.open()
        hook = module.register_forward_hook(_runs_out)
        with pytest.raises(OutOfDeviceMemory, match="no memory left for this pass"):
            desk.run(PROMPT, NEW)
        hook.remove()
        desk.open()
        assert desk.outcome(desk.run(PROMPT, NEW)) == plain

    def test_memory_that_runs_out_in_a_sum(self, desk: Desk, plain: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the parts are added, when the rank has its own."""
        leader: Any = desk.engine.forward._catch.__self__  # type: ignore[attr-defined]
        desk.open()
        with monkeypatch.context() as patch:
            patch.setattr(leader, "total", _runs_out)
            with pytest.raises(OutOfDeviceMemory):
                desk.run(PROMPT, NEW)
        assert desk.outcome(desk.run(PROMPT, NEW)) == plain

    def test_a_pass_that_yields_between_layers(self, desk: Desk, plain: Outcome) -> None:
        replies: list[Any] = []
        desk.open()
        desk.open("b")
        desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=NEW, ignore_eos=True), replies)
        desk.post(ask.Run(session="b", tokens=PROMPT, max_new_tokens=NEW, ignore_eos=True), replies)
        while len(replies) < 2:
            desk.engine.tick()
        assert desk.outcome(replies[0]) == plain
        assert desk.outcome(replies[1], "b") == plain


REFUSED: dict[str, Callable[[Desk], Any]] = {
    "Sweep": lambda d: d.ask(
        Sweep(session="a", corrupted=PROMPT, site="resid_post", over=("layer",), metrics=("entropy",))
    ),
    "ReadWeight": lambda d: d.ask(ask.ReadWeight(name="q.1")),
    "Collect": lambda d: d.ask(
        Collect(session="a", folder="/x", shard=0, first=0, last=True, prompts=(PROMPT,), sites=("z.1",))
    ),
    "MakeGraph": lambda d: d.ask(MakeGraph(session="a", line=PROMPT, module="tc")),
    "Sleep": lambda d: d.ask(ask.Sleep()),
    "SetAttention": lambda d: d.ask(ask.SetAttention(session="a", attention="eager")),
}


@pytest.mark.parametrize("request_", REFUSED)
def test_a_request_for_whole_layers_is_refused_in_one_sentence(desk: Desk, plain: Outcome, request_: str) -> None:
    desk.open()
    with pytest.raises(UsageError, match="--tensor-parallel"):
        REFUSED[request_](desk)
    assert desk.outcome(desk.run(PROMPT, NEW)) == plain


def _runs_out(*_: Any) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
