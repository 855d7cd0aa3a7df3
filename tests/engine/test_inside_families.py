"""Every point and module of further families: a pass that stopped there goes on with the bits of one that never
stopped, also where the value is a part of what a fused projection made and lies in memory as such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, Outcome, build_desk
from tests.engine.plain import generate
from tests.engine.test_inside import NEW, PROMPT, module_sites, point_sites, resolves, usual_and_whole
from tests.engine.test_more_families import KEEP_STATE
from tests.families import FAMILIES, MORE, build, drawn, enough_layers

FUSED = ("phi3", "glm", "dbrx")  # the halves of a projection; an attention that returns the MLP's input
REFUSED = ("recurrent_gemma", *KEEP_STATE)
EVERY = [*FUSED, *drawn(name for name in {**FAMILIES, **MORE} if name not in (*FUSED, *REFUSED))]
STEPS = (0, 1)  # the prefill and a decode step


@pytest.fixture(scope="module", params=EVERY)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def desk(name: str) -> Desk:
    return build_desk(build(name, layers=enough_layers(name)))


@pytest.fixture(scope="module")
def plain(name: str, desk: Desk) -> Outcome:
    reference: Any = build(name, layers=enough_layers(name))
    reference.generation_config = GenerationConfig()  # that of BART forces the last token
    return generate(reference, PROMPT, NEW, **desk.engine.anatomy.keep_last)


def goes_through(desk: Desk, sites: list[tuple[str, int]], plain: Outcome) -> None:
    """Fail unless a run that stops once at each site in its step, in the order of the model, ends as one that never
    stopped."""
    desk.open()
    for site, step in sites:
        desk.stop_at(site, f"step == {step}")
    met: list[tuple[int, float, str]] = []
    reply = desk.run(PROMPT, NEW)
    while not hasattr(reply, "text"):
        for site in (reply.site, *reply.also):
            tap = desk.engine.runtime.resolve(parse_site(site))
            met.append((reply.step, tap.stage + 0.5 if tap.boundary is None else tap.boundary, site))
        reply = desk.resume()
    assert sorted((site, step) for step, _, site in met) == sorted((str(parse_site(site)), at) for site, at in sites)
    assert [one[:2] for one in met] == sorted(one[:2] for one in met)
    assert reply.tokens == plain.tokens, sites
    assert torch.equal(desk.logits(), plain.logits), sites


@usual_and_whole
def test_a_stop_at_any_point_changes_no_bit(desk: Desk, plain: Outcome, whole: bool) -> None:
    """The usual run stops at a point of every other layer in the prefill, and of those between in the decode step."""
    sites = []
    for layer in range(desk.layers):
        for number, site in enumerate(point_sites(desk, (layer,), whole=True)):
            steps = STEPS if whole else ((number + layer + layer // 4) % 2,)
            sites += [(site, step) for step in steps if resolves(desk, site)]  # not all have an ln_final
    goes_through(desk, [*dict.fromkeys(sites)], plain)
    desk.close_all()


def test_a_stop_at_any_module_alone_changes_no_bit(desk: Desk, plain: Outcome) -> None:
    for site in module_sites(desk, (desk.layers // 2,)):
        goes_through(desk, [(site, step) for step in STEPS], plain)
    desk.close_all()
