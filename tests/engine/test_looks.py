"""Looking at a stopped pass: below, at and ahead of the stop, and the effect of an edit; looking leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import IllegalMove, InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, PatchFrom, Scale, Zero
from djinn_jupyter.wire.nouns import Snapshot
from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.plain import generate, plain_of

PROMPT = tokens(13)
NEW = 5
V = torch.randn(32, generator=torch.Generator().manual_seed(1))
SITES = ("embed", "resid_pre.0", "resid_post.1", "attn_out.5", "mlp_in.5", "resid_mid.5", "mlp_out.6", "resid_post.7")
AHEAD = ("ln_final", "logits")


@pytest.fixture(params=["gpt2", "jamba"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def plain(desk: Desk) -> Outcome:
    return generate(plain_of(desk.engine.model.config.model_type), PROMPT, NEW)


def really(desk: Desk, sites: tuple[str, ...], step: int) -> dict[str, Tensor]:
    """Return a run's values at these sites in the pass of `step`, recorded by watches."""
    desk.open("watcher")
    for rule in desk.session().rules.values():
        desk.steer(rule.named, rule.edit, "watcher")
    for site in sites:
        desk.ask(ask.Watch(session="watcher", site=site))
    desk.run(PROMPT, NEW, name="watcher")
    found = {site: desk.session("watcher").watches[site].values[step] for site in sites}
    desk.close("watcher")
    return found


def look(desk: Desk, site: str | None, ahead: bool = False) -> Snapshot:
    return desk.ask(ask.Inspect(session="a", site=site, ahead=ahead)).snapshot


@pytest.mark.parametrize(
    ("stop", "step"), [("resid_post.4", 0), ("mlp_in.5", 2), ("resid_post.7", 2), ("resid_pre.0", 0)]
)
def test_every_site_below_at_and_ahead_is_what_a_run_has_there(desk: Desk, stop: str, step: int) -> None:
    values = really(desk, SITES + AHEAD, step)
    desk.stop_at(stop, f"step == {step}")
    desk.run(PROMPT, NEW)
    for site, expected in values.items():
        seen = look(desk, site, ahead=True)
        if seen.exactness == "run ahead":
            with pytest.raises(UnknownSite, match="ahead"):
                look(desk, site)
        assert torch.equal(desk.value(site, ahead=True), expected), site
        assert seen.positions[-1] == len(PROMPT) - 1 + step
    assert look(desk, None).exactness == "exact"
    assert desk.outcome(desk.resume()) == plain(desk)


def test_below_the_stop_an_edited_pass_is_shown_as_it_really_went(desk: Desk) -> None:
    """An edit at layer 2, then a stop at layer 6: the layers between have seen the edit, those below have not."""
    desk.stop_at("resid_post.2", "step == 1")
    desk.stop_at("resid_post.6", "step == 1")
    desk.stop_at("resid_post.4", "step == 1")
    desk.run(PROMPT, NEW)
    below = desk.value("resid_post.1")
    desk.edit(Add(vector=array(V), coef=3.0))
    edited = desk.value()
    desk.resume()
    between = desk.value()
    desk.resume()
    assert torch.equal(desk.value("resid_post.1"), below)
    assert torch.equal(desk.value("resid_post.2"), edited)
    assert torch.equal(desk.value("resid_post.4"), between)
    final = desk.outcome(desk.resume())
    assert final != plain(desk)
    desk.back()
    desk.value("mlp_out.5")
    assert desk.outcome(desk.resume()) == final


def test_rules_that_came_or_went_while_stopped_do_not_change_what_happened(desk: Desk) -> None:
    desk.steer("resid_post.2", Scale(factor=1.5))
    values = really(desk, ("resid_post.2", "mlp_in.3", "resid_post.4"), 1)
    desk.stop_at("resid_post.5", "step == 1")
    desk.run(PROMPT, NEW)
    desk.ask(ask.Unsteer(session="a"))
    desk.steer("resid_post.3", Zero())
    for site, expected in values.items():
        assert torch.equal(desk.value(site), expected), site
    desk.back(1, by="layer")
    assert torch.equal(desk.value(), values["resid_post.4"])
    for site in ("resid_post.2", "mlp_in.3"):
        assert torch.equal(desk.value(site), values[site]), site


def test_ahead_of_the_stop_the_rules_that_hold_now_apply(desk: Desk) -> None:
    desk.stop_at("resid_post.3", "step == 1")
    desk.run(PROMPT, NEW)
    desk.steer("resid_post.5", Zero())
    assert not desk.value("resid_post.5", ahead=True).any()


def test_an_edit_within_a_layer_is_seen_at_its_site_and_ahead(desk: Desk) -> None:
    desk.stop_at("mlp_out.5", "step == 1")
    desk.run(PROMPT, NEW)
    untouched = desk.value("resid_post.5", ahead=True)
    desk.edit(Zero())
    assert not desk.value().any()
    assert not torch.equal(desk.value("resid_post.5", ahead=True), untouched)
    desk.ask(ask.RevertEdits(session="a"))
    assert torch.equal(desk.value("resid_post.5", ahead=True), untouched)
    assert desk.outcome(desk.resume()) == plain(desk)


def logits_ahead(desk: Desk) -> Tensor:
    logits = desk.ask(ask.ReadPass(session="a", logits=True)).logits
    assert logits is not None
    return to_tensor(logits)


@pytest.mark.parametrize("stop", ["resid_post.4", "mlp_out.5", "ln_final"])
def test_logits_ahead_are_those_of_all_positions_of_a_pass_that_has_the_edit(desk: Desk, stop: str) -> None:
    def scored() -> Tensor:
        desk.open("score")
        values = desk.ask(Score(session="score", prompts=(PROMPT,), what="logits", rules_of="ruled")).values
        desk.close("score")
        return to_tensor(values)

    desk.open("ruled")
    desk.stop_at(stop, "step == 0")
    desk.run(PROMPT, NEW)
    assert torch.equal(logits_ahead(desk), scored())
    desk.steer(stop, Scale(factor=3.0), "ruled")
    assert not torch.equal(logits_ahead(desk), scored())
    desk.edit(Scale(factor=3.0))
    assert torch.equal(logits_ahead(desk), scored())
    desk.ask(ask.RevertEdits(session="a"))
    assert desk.outcome(desk.resume()) == plain(desk)


@pytest.mark.parametrize("stop", ["resid_post.4", "mlp_in.5", "ln_final"])
def test_a_pass_is_read_at_many_sites_at_once(desk: Desk, stop: str) -> None:
    """An edit at layer 2, a rule at layer 6, and a stop: what is read is what a run has there."""
    sites = (*SITES, "ln_final")
    desk.steer("resid_post.6", Scale(factor=0.5))
    values = really(desk, sites, 0)
    desk.stop_at(stop, "step == 0")
    desk.run(PROMPT, NEW)
    below = desk.ask(ask.ReadPass(session="a", sites=sites))
    read = desk.ask(ask.ReadPass(session="a", sites=sites, ahead=True))
    assert read.sites == sites
    assert (below.logits, read.logits) == (None, None)
    assert set(below.sites) == {site for site in sites if look_or_none(desk, site)}
    for reply in (below, read):
        for site, value in zip(reply.sites, reply.values, strict=True):
            assert torch.equal(to_tensor(value), values[site]), site
    desk.edit(Zero())
    edited = desk.ask(ask.ReadPass(session="a", sites=(stop, "ln_final"), ahead=True)).values
    assert not to_tensor(edited[0]).any()
    assert torch.equal(to_tensor(edited[-1]), desk.value("ln_final", ahead=True))
    with pytest.raises(UnknownSite):
        desk.ask(ask.ReadPass(session="a", sites=("resid_post.99",)))


def test_values_of_more_bytes_than_an_answer_has_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.stop_at("resid_post.4", "step == 0")
    desk.run(PROMPT, NEW)
    monkeypatch.setattr(bounds, "ANSWERED_VALUES", len(PROMPT) * 32 * 4)
    assert desk.ask(ask.ReadPass(session="a", sites=("resid_post.2",))).sites == ("resid_post.2",)
    with pytest.raises(UsageError, match="of fewer sites at a time"):
        desk.ask(ask.ReadPass(session="a", sites=("resid_post.2", "resid_post.3")))
    monkeypatch.undo()
    assert desk.outcome(desk.resume()) == plain(desk)


def look_or_none(desk: Desk, site: str) -> Snapshot | None:
    """Return the value at a site; None where it lies ahead of the stop."""
    try:
        return look(desk, site)
    except UnknownSite:
        return None


def test_looks_in_plenty_leave_no_trace(desk: Desk) -> None:
    for step in (0, 2):
        desk.stop_at("mlp_in.5", f"step == {step}")
    desk.run(PROMPT, NEW)
    for _ in range(2):
        for site in (*SITES, *AHEAD):
            look(desk, site, ahead=True)
        desk.ask(ask.Lens(session="a", site="resid_post.2"))
        desk.ask(ask.MeasureEffect(session="a"))
        logits_ahead(desk)
        desk.settle()
        reply = desk.resume()
    assert desk.outcome(reply) == plain(desk)
    counts = desk.ask(ask.Describe(session="a")).session
    assert [b.hits for b in counts.breakpoints] == [1, 1]


def test_the_effect_of_an_edit_is_what_its_resume_brings(desk: Desk) -> None:
    desk.stop_at("resid_post.6", "step == 1")
    desk.run(PROMPT, NEW)
    none = desk.ask(ask.MeasureEffect(session="a")).effect
    assert (none.kl, none.top1_changed, none.logit_difference_norm) == (0.0, False, 0.0)
    edited = desk.edit(Add(vector=array(V), coef=6.0), positions=(-1,))
    assert (edited.shape, edited.entries_changed) == ((1, 32), 32)
    effect = desk.ask(ask.MeasureEffect(session="a")).effect
    assert effect.before[0].token == plain(desk).tokens[1]
    desk.step(20, by="token")
    assert desk.session().tokens[len(PROMPT) + 1] == effect.after[0].token
    assert effect.top1_changed == (effect.before[0].token != effect.after[0].token)
    assert effect.kl > 0


def test_edits_add_up_and_revert_takes_all_of_them_back(desk: Desk) -> None:
    desk.stop_at("resid_post.6", "step == 1")
    desk.run(PROMPT, NEW)
    value = desk.value()
    desk.edit(Scale(factor=2.0))
    desk.edit(Add(vector=array(V)))
    assert torch.equal(desk.value(), value * 2.0 + V)
    assert desk.ask(ask.ReadStop(session="a")).edits == (
        f"scale 2 at resid_post.6, position {len(PROMPT)}",
        f"add [32] x 1 at resid_post.6, position {len(PROMPT)}",
    )
    assert desk.ask(ask.RevertEdits(session="a")).edits == ()
    assert torch.equal(desk.value(), value)
    assert desk.outcome(desk.resume()) == plain(desk)


def test_the_lens_is_the_models_own_epilogue(desk: Desk) -> None:
    desk.stop_at("resid_post.7", "step == 0")
    desk.run(PROMPT, NEW)
    rows = desk.ask(ask.Lens(session="a")).rows
    assert [row.position for row in rows] == list(range(len(PROMPT)))
    assert [row.token for row in rows] == list(PROMPT)
    with torch.no_grad():
        model = plain_of(desk.engine.model.config.model_type)
        logits = model(torch.tensor([PROMPT], device=model.device)).logits[0]
    assert [row.top[0].token for row in rows] == logits.argmax(-1).tolist()
    assert rows[-1].top[0].logit == pytest.approx(float(logits[-1].max()), rel=1e-5)


def test_the_lens_reads_the_tokens_that_are_asked_for(desk: Desk) -> None:
    desk.stop_at("resid_post.3", "step == 0")
    desk.run(PROMPT, NEW)
    size = desk.engine.description.vocab_size
    every = desk.ask(ask.Lens(session="a", top=1000, positions=(-1,))).rows[0]
    least = every.top[-1]
    row = desk.ask(ask.Lens(session="a", top=1, positions=(-1,), tokens=(least.token, "<17>"))).rows[0]
    assert row.chosen == (least, next(t for t in every.top if t.token == 17))
    assert row.top == every.top[:1]
    with pytest.raises(UsageError, match=f"this model has {size}"):
        desk.ask(ask.Lens(session="a", tokens=(size,)))


def test_a_value_is_patched_from_another_sessions_stop(desk: Desk) -> None:
    """All of it makes of one prompt the other, from there on; a part of it is that part."""
    other = tokens(len(PROMPT), seed=7)
    for name, prompt in (("a", PROMPT), ("b", other)):
        desk.open(name)
        desk.stop_at("resid_post.4", "step == 0", name)
        desk.run(prompt, 0, name)
    theirs, ours = desk.value(name="b"), desk.value()
    desk.edit(PatchFrom(session="b"), positions=(2, 5))
    assert torch.equal(desk.value()[[2, 5]], theirs[[2, 5]])
    assert torch.equal(desk.value()[[0, 1, 3, 4]], ours[[0, 1, 3, 4]])
    desk.edit(PatchFrom(session="b", positions=(1,)), positions=(-1,))
    assert torch.equal(desk.value()[-1], theirs[1])
    desk.edit(PatchFrom(session="b", site="resid_post.2"))
    assert torch.equal(desk.value(), desk.value("resid_post.2", "b"))
    with pytest.raises(UnknownSite, match="ahead"):
        desk.edit(PatchFrom(session="b", site="resid_post.6"))
    with pytest.raises(InvalidEdit, match="as many positions"):
        desk.edit(PatchFrom(session="b", positions=(1, 2)), positions=(3,))
    desk.resume("b")
    with pytest.raises(IllegalMove, match="no forward pass is stopped"):
        desk.edit(PatchFrom(session="b"))


ALIASES = [("z.5", "model.layers.5.self_attn.o_proj.input"), ("mlp_out.5", "model.layers.5.mlp")]


@pytest.mark.parametrize("names", [*ALIASES, *(names[::-1] for names in ALIASES)], ids=str)
def test_one_tensor_under_two_names_is_one_value(llama: Desk, names: tuple[str, str]) -> None:
    """An edit at one is seen at the other, and stops at both come one after the other, whichever has gone meanwhile."""
    first, second = names
    llama.open()
    llama.stop_at(first, "step == 1")
    llama.run(PROMPT, NEW)
    llama.edit(Zero())
    assert not llama.value(second).any()
    llama.step()
    assert not llama.value(second).any()
    assert not llama.value(first).any()
    edited = llama.outcome(llama.resume())
    for once in (False, True):
        llama.open()
        for name in names:
            llama.stop_at(name, "step == 1", once=once)
        met = [llama.run(PROMPT, NEW).site, llama.resume().site]
        assert sorted(met) == sorted(str(parse_site(name)) for name in names)
        llama.edit(Zero())
        assert llama.outcome(llama.resume()) == edited
        llama.back(2)
        llama.edit(Zero())
        llama.clear()
        assert llama.outcome(llama.resume()) == edited


@pytest.mark.parametrize("once", [False, True])
def test_parts_of_a_fused_projection_are_edited_one_after_the_other(once: bool) -> None:
    """q, k and v of GPT-2 are columns of one tensor: each edit keeps those before it."""
    desk = desk_of("gpt2")
    sites = ("q.5", "k.5", "v.5")
    outcomes = []
    for order in (sites, sites[::-1]):
        desk.open()
        for site in order:
            desk.stop_at(site, "step == 1", once=once)
        desk.run(PROMPT, NEW)
        for _ in sites:
            desk.edit(Scale(factor=1.75))
            reply = desk.resume()
        outcomes.append(desk.outcome(reply))
    desk.open()
    desk.stop_at("transformer.h.5.attn.c_attn", "step == 1")
    desk.run(PROMPT, NEW)
    desk.edit(Scale(factor=1.75))
    assert outcomes == [desk.outcome(desk.resume())] * 2
    desk.close_all()


def test_a_word_that_is_short_for_points_is_answered_with_the_output_first(desk: Desk) -> None:
    with pytest.raises(UnknownSite, match=r"did you mean 'resid_post.3' or 'resid_pre.3'\?"):
        desk.stop_at("resid.3")
