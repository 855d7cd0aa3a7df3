"""Stops within layers: at every point the anatomy names and at modules by path, in a prefill and in a decode step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from djinn_jupyter.errors import InvalidEdit, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Edit, Scale, Set, Zero
from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.plain import generate, plain_of

pytestmark = pytest.mark.drawn

KINDS = [(family, None) for family in ("llama", "gpt2", "gemma3_text", "gpt_neox", "mixtral", "jamba")]
KINDS += [("llama", "eager"), ("gpt_neox", "eager"), ("gemma3_text", "eager")]
SEVERAL_KINDS = ("gemma3_text", "jamba")  # windows and none, states and attention
# What eager attention changes: in the usual run these points alone are walked again under it, and no modules.
OF_ATTENTION = ("q", "k", "v", "q_rot", "k_rot", "attn_scores", "pattern", "z", "attn_out")
PROMPT = tokens(13)
NEW = 4
every_step = pytest.mark.parametrize("step", [0, 1])
usual_and_whole = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["usual", "whole"]
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(filter(None, kind)))
def desk(request: pytest.FixtureRequest) -> Desk:
    return desk_of(request.param[0], attention=request.param[1])


@pytest.fixture(scope="module")
def plain(desk: Desk) -> Outcome:
    config = desk.engine.model.config
    return generate(plain_of(config.model_type, attention=config._attn_implementation), PROMPT, NEW)


@pytest.fixture(autouse=True)
def nothing_left(desk: Desk) -> Iterator[None]:
    desk.open()
    yield
    desk.close_all()


def point_sites(desk: Desk, layers: tuple[int, ...], *, whole: bool) -> list[str]:
    """Every point of these layers, and those of the whole model, as far as the anatomy says they are there; under
    eager attention those of attention, unless it is the `whole` of them."""
    found = []
    for one in desk.engine.description.points:
        if by_hand(desk) and not whole and one.point not in OF_ATTENTION:
            continue
        if one.layers is None:
            found.append(one.point)
        else:
            found += [f"{one.point}.{layer}" for layer in layers if layer in one.layers]
    return found


def by_hand(desk: Desk) -> bool:
    """True for a second engine of a family, which computes its attention step by step."""
    return desk.engine.model.config._attn_implementation == "eager"


def module_sites(desk: Desk, layers: tuple[int | None, ...]) -> list[str]:
    """Inputs and outputs of all modules of these layers that can be sites."""
    found = []
    for module in desk.engine.anatomy.modules:
        for end in ("input", "output"):
            site = f"{module.path}.{end}"
            if module.layer in layers and resolves(desk, site):
                found.append(site)
    return found


def resolves(desk: Desk, site: str) -> bool:
    try:
        desk.engine.runtime.resolve(parse_site(site))
    except UnknownSite:
        return False
    return True


def walk(desk: Desk, sites: list[str], step: int) -> list[str]:
    """Stop at each of the sites in one run; those met in order. The run is at its end afterwards."""
    for site in sites:
        desk.stop_at(site, f"step == {step}")
    met = []
    reply = desk.run(PROMPT, NEW)
    while not hasattr(reply, "text"):
        met += [reply.site, *reply.also]
        reply = desk.resume()
    return met


@every_step
@usual_and_whole
def test_back_to_each_of_several_stops_within_a_layer(desk: Desk, plain: Outcome, step: int, whole: bool) -> None:
    met = walk(desk, point_sites(desk, (5,), whole=whole), step)  # 5: one of Jamba's with attention
    stops = len(desk.session().history.stops)
    for count in range(1, stops + 1):
        desk.fork("b")
        paused = desk.back(count, name="b")
        assert (paused.step, paused.history_index, paused.history_length) == (step, stops - count, stops)
        assert paused.site in met
        if desk.engine.runtime.resolve(parse_site(paused.site)).editable:
            desk.edit(strong_edit(paused), name="b")
            desk.resume("b", free=True)
            desk.back(name="b")
        assert desk.outcome(desk.resume("b", free=True), "b") == plain, paused.site
        desk.close("b")


@every_step
@usual_and_whole
def test_an_edit_at_each_point_moves_the_logits_and_can_be_taken_back(
    desk: Desk, plain: Outcome, step: int, whole: bool
) -> None:
    layers = (1, 4, 5, desk.layers - 1) if whole else (*layers_of_another_kind(desk), 5)
    for site in point_sites(desk, layers, whole=whole):
        desk.clear()
        desk.stop_at(site, f"step == {step}")
        paused = desk.run(PROMPT, NEW)
        if not desk.engine.runtime.resolve(parse_site(site)).editable:
            with pytest.raises(InvalidEdit, match="can be looked at, not changed"):
                desk.edit()
            continue
        edited = desk.edit(strong_edit(paused))
        assert edited.entries_changed > 0, site
        effect = desk.ask(ask.MeasureEffect(session="a")).effect
        assert effect.logit_difference_norm > 0, site
        desk.fork("b")
        branch = desk.outcome(desk.resume("b", free=True), "b")
        assert branch.tokens[step] == effect.after[0].token, site
        assert plain.tokens[step] == effect.before[0].token, site
        desk.ask(ask.RevertEdits(session="a"))
        assert desk.outcome(desk.resume(free=True)) == plain, site
        desk.close("b")


def layers_of_another_kind(desk: Desk) -> tuple[int, ...]:
    """Return one where a family has layers of several kinds."""
    return (4,) if desk.engine.model.config.model_type in SEVERAL_KINDS else ()


def strong_edit(paused: object) -> Edit:
    """Return an edit that no norm cancels."""
    if paused.axes == "T H K":
        return Scale(factor=0.5)
    vector = torch.randn(paused.shape[-1], generator=torch.Generator().manual_seed(2))
    return Add(vector=array(vector), coef=3.0)


def test_edits_one_after_the_other_within_one_layer_add_up(desk: Desk, plain: Outcome) -> None:
    """Going back undoes the later ones and keeps the earlier."""
    sites = ["z.5", "attn_out.5", "mlp_in.5", "mlp_out.5", "resid_post.5"]
    for site in sites:
        desk.stop_at(site, "step == 1")
    reply = desk.run(PROMPT, NEW)
    after = []
    for site in sites:
        desk.edit(Zero() if site == "z.5" else strong_edit(reply))
        desk.fork("b")
        after.append(desk.outcome(desk.resume("b", free=True), "b"))
        desk.close("b")
        reply = desk.resume()
    assert desk.outcome(reply) == after[-1]
    assert len({outcome.logits.numpy().tobytes() for outcome in (plain, *after)}) == len(sites) + 1
    for count, expected in ((1, after[3]), (2, after[2]), (3, after[1]), (4, after[0]), (5, plain)):
        desk.fork("b")
        desk.back(count, name="b")
        assert desk.outcome(desk.resume("b", free=True), "b") == expected, f"{count} back"
        desk.close("b")


def test_a_value_set_at_a_stop_is_the_value_the_model_goes_on_with(desk: Desk) -> None:
    """Another prompt's whole value, set at the stop, gives that prompt's logits from there on."""
    other = tokens(len(PROMPT), seed=8)
    desk.stop_at("resid_post.7", "step == 0")
    desk.run(other, 0)
    hidden = desk.value()
    expected = desk.outcome(desk.resume())
    desk.run(PROMPT, 0)
    desk.edit(Set(value=array(hidden)))
    assert torch.equal(desk.outcome(desk.resume()).logits, expected.logits)
