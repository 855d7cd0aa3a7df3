"""The mechanisms that stopping and re-entering needs. Each story below is exact; without its mechanism it is not.

The numbers are those of *Seven needs* in docs/design.md. A need whose absence changed nothing would be a need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.gates import Gates, LayerForm
from djinn_jupyter.engine.model.loading.load import RotaryBuffers
from djinn_jupyter.engine.passes.controller import PassController
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, Outcome, build_desk, desk_of, tokens
from tests.engine.plain import generate, plain_of
from tests.engine.variants import dynamic_rope, in_place
from tests.families import build

PROMPT = tokens(12)
NEW = 6
Story = Callable[[Desk], Any]


def told(desk: Desk, story: Story) -> Any:
    """Return the outcome of a story; None where it raises before its end."""
    desk.open()
    try:
        return story(desk)
    except Exception:  # noqa: BLE001  taken-out mechanisms break models in their own ways
        return None
    finally:
        desk.engine.forward.gates.hooks = None
        desk.close_all()


def stop_and_go_on(site: str, when: str) -> Story:
    def story(desk: Desk) -> Outcome:
        desk.stop_at(site, when)
        desk.run(PROMPT, NEW)
        return desk.outcome(desk.resume())

    return story


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Yield a patch by which a test takes a mechanism out."""
    with monkeypatch.context() as patch:
        yield patch


@pytest.mark.parametrize(("family", "step"), [("llama", 0), ("bloom", 2)])
def test_1_every_layer_of_the_cache_stands_at_the_committed_length_before_an_entry(
    family: str, step: int, out: pytest.MonkeyPatch
) -> None:
    """A mask of a prefill, and ALiBi in a decode step too, is made from the length of the first layer."""
    desk, story = desk_of(family), stop_and_go_on("resid_post.4", f"step == {step}")
    plain = generate(plain_of(family), PROMPT, NEW)
    assert told(desk, story) == plain
    out.setattr(PagedCache, "enter", lambda self, committed: None)
    assert told(desk, story) != plain


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_2_a_skipped_layer_returns_the_form_that_the_layer_returns(family: str, out: pytest.MonkeyPatch) -> None:
    desk, story = desk_of(family), stop_and_go_on("resid_post.7", "step == 1")
    plain = generate(plain_of(family), PROMPT, NEW)
    assert desk.engine.anatomy.forms[0].length is not None, "this family would prove nothing"
    assert told(desk, story) == plain
    out.setattr(LayerForm, "wrap", lambda self, hidden: hidden)
    assert told(desk, story) != plain


@pytest.mark.parametrize(
    ("family", "site", "step"),
    [("mamba2", "backbone.layers.4.mixer.out_proj.output", 0), ("jamba", "resid_mid.4", 2)],
)
def test_3_states_are_kept_from_before_the_layer(family: str, site: str, step: int, out: pytest.MonkeyPatch) -> None:
    """If they were kept as of the stop, this step would be right and the next token wrong."""

    def story(desk: Desk) -> Outcome:
        desk.ask(ask.Watch(session="a", site="logits"))
        return stop_and_go_on(site, f"step == {step}")(desk)

    desk, plain = desk_of(family), generate(plain_of(family), PROMPT, NEW)
    assert told(desk, story) == plain
    out.setattr(PagedCache, "capture", lambda self, layer: None)
    wrong = told(desk, story)
    assert wrong.tokens[: step + 1] == plain.tokens[: step + 1], "this step is right"
    assert not torch.equal(wrong.logits, plain.logits), "what comes after it is not"


def test_3_a_frame_keeps_the_states_of_the_layers_from_its_own_on(out: pytest.MonkeyPatch) -> None:
    """Without them, the second resume from one stop begins with the states that the first one left."""

    def story(desk: Desk) -> Outcome:
        stop_and_go_on("resid_post.3", "step == 1")(desk)
        desk.back()
        return desk.outcome(desk.resume())

    desk, plain = desk_of("jamba"), generate(plain_of("jamba"), PROMPT, NEW)
    assert told(desk, story) == plain
    out.setattr(PagedCache, "restore_all", lambda self, captured: None)
    assert told(desk, story) != plain


def test_4_a_frame_keeps_what_layers_hand_on_to_each_other(out: pytest.MonkeyPatch) -> None:
    desk, plain = desk_of("gemma3n_text"), generate(plain_of("gemma3n_text"), PROMPT, NEW)
    assert desk.engine.anatomy.mappings
    for when in ("step == 0", "step == 2"):
        story = stop_and_go_on("resid_post.5", when)  # layers 6 and 7 read the keys of earlier ones
        assert told(desk, story) == plain
        with out.context() as patch:
            patch.setattr(Anatomy, "mappings", ())
            assert told(desk, story) != plain


def test_4_a_frame_has_its_own_positions_not_those_of_the_prompt() -> None:
    """A stop in a decode step stands at one position, and after an extension the pass begins where the line ended."""
    desk = desk_of("llama")
    desk.open()
    desk.stop_at("resid_post.3", "step == 2")
    assert desk.run(PROMPT, NEW).positions == (len(PROMPT) + 1,)
    finished = desk.resume()
    desk.clear()
    desk.stop_at("resid_post.3", "step == 0")
    line = len(PROMPT) + len(finished.tokens)
    paused = desk.run(tokens(4, seed=6), NEW, extend=True)
    assert paused.positions == tuple(range(line - 1, line + 4)), "the last token drawn was never fed"
    desk.close_all()


@pytest.mark.parametrize("family", ["llama", "jamba"])
def test_5_a_stop_within_a_layer_keeps_that_layers_input(family: str, out: pytest.MonkeyPatch) -> None:
    desk, story = desk_of(family), stop_and_go_on("mlp_in.5", "step == 1")
    plain = generate(plain_of(family), PROMPT, NEW)
    assert told(desk, story) == plain
    kept = PassController.about_to_run

    def forgetful(self: PassController, layer: int, hidden: Tensor, kwargs: dict[str, Any]) -> None:
        kept(self, layer, hidden, kwargs)
        self._entry = self.frame.hidden

    out.setattr(PassController, "about_to_run", forgetful)
    assert told(desk, story) != plain


def test_5_keys_and_values_of_the_step_are_overwritten_with_the_same_bits() -> None:
    desk = desk_of("llama")
    desk.open()
    desk.stop_at("attn_out.5", "step == 0")
    desk.run(PROMPT, NEW)
    before = rows(desk)
    desk.step()
    assert torch.equal(rows(desk), before)
    desk.close_all()


def rows(desk: Desk) -> Tensor:
    """Keys and values of layer 5 in the first page of the session."""
    cache, slab = desk.session().cache, desk.engine.slabs[0]
    cache.flush()
    page = cache.groups[0].table.pages[0]
    used = slice(0, len(PROMPT))
    return torch.stack([slab.key_view(page, 5)[:, used], slab.value_view(page, 5)[:, used]]).clone()


def test_6_rotary_frequencies_that_a_pass_changes_are_put_back_at_each_entry(out: pytest.MonkeyPatch) -> None:
    """Two sessions of different length, both longer than the original context, take turns at every stop."""
    desk = build_desk(dynamic_rope())
    long, short = tokens(60, seed=3), tokens(20, seed=4)
    alone = (generate(dynamic_rope(), long, NEW), generate(dynamic_rope(), short, NEW))

    def story(desk: Desk) -> tuple[Outcome, Outcome]:
        desk.open("b")
        for name, prompt in (("a", long), ("b", short)):
            desk.stop_at("resid_post.3", name=name)
            desk.run(prompt, NEW, name=name)
        for _ in range(NEW):
            done = desk.resume("a"), desk.resume("b")
        return desk.outcome(done[0], "a"), desk.outcome(done[1], "b")

    assert told(desk, story) == alone
    out.setattr(RotaryBuffers, "reset", lambda self: None)
    assert told(desk, story) != alone


def test_6_gates_are_cleared_also_when_a_pass_breaks() -> None:
    desk = desk_of("llama")
    desk.open()
    layer = desk.engine.anatomy.layers[4]

    def broken(*_: Any) -> None:
        raise ValueError("a fault in the model")

    hook = layer.mlp.register_forward_hook(broken)
    with pytest.raises(Exception, match="a fault in the model"):
        desk.run(PROMPT, NEW)
    hook.remove()
    assert desk.engine.forward.gates.hooks is None
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(plain_of("llama"), PROMPT, NEW)
    desk.close_all()


def test_7_a_layer_that_adds_in_place_writes_into_no_frame(out: pytest.MonkeyPatch) -> None:
    desk = build_desk(in_place(build("llama")))
    plain = generate(in_place(build("llama")), PROMPT, NEW)
    for site in ("resid_post.3", "resid_pre.0", "attn_out.4", "resid_post.7"):

        def story(desk: Desk, site: str = site) -> Outcome:
            stop_and_go_on(site, "step == 1")(desk)
            desk.back()
            return desk.outcome(desk.resume())

        assert told(desk, story) == plain, site
    enter = Forward.enter

    def uncloned(self: Forward, frame: Any, *rest: Any, **how: Any) -> Any:
        hidden = None if frame.hidden is None else frame.hidden.as_subclass(Uncloned)
        object.__setattr__(frame, "hidden", hidden)
        return enter(self, frame, *rest, **how)

    def story_3(desk: Desk) -> Outcome:
        stop_and_go_on("resid_post.3", "step == 1")(desk)
        desk.back()
        return desk.outcome(desk.resume())

    out.setattr(Forward, "enter", uncloned)
    assert told(desk, story_3) != plain


class Uncloned(torch.Tensor):
    """A tensor whose clone is itself."""

    def clone(self, *args: Any, **kwargs: Any) -> Tensor:
        return self


def test_7_the_last_layers_output_is_a_stop_before_the_final_norm(out: pytest.MonkeyPatch) -> None:
    """If the gate behind the last layer were left out, an edit there would be lost."""
    desk = desk_of("llama")
    desk.open()
    desk.stop_at("resid_post.7", "step == 0")
    paused = desk.run(PROMPT, NEW)
    assert (paused.layer, paused.layers, paused.layers_run) == (8, 8, 8)
    desk.edit()
    norms = desk.ask(ask.ReadStop(session="a")).norms
    assert norms == pytest.approx([norm / 2 for norm in paused.norms])
    assert isinstance(desk.engine.forward.gates, Gates)
    desk.close_all()
