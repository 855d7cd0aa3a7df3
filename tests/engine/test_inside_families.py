"""Every point and module of further families: a pass that stopped there goes on with the bits of one that never
stopped, also where the value is a part of what a fused projection made and lies in memory as such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from tests.engine.desk import Desk, Outcome, build_desk
from tests.engine.plain import generate
from tests.engine.test_inside import NEW, PROMPT, every_step, module_sites, point_sites, resolves, walk
from tests.families import FAMILIES, MORE, build, drawn

FUSED = ("phi3", "glm", "dbrx")  # the halves of a projection; an attention that returns the MLP's input
EVERY = [*FUSED, *drawn(name for name in {**FAMILIES, **MORE} if name not in FUSED)]


@pytest.fixture(scope="module", params=EVERY)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def desk(name: str) -> Desk:
    return build_desk(build(name))


@pytest.fixture(scope="module")
def plain(name: str, desk: Desk) -> Outcome:
    reference: Any = build(name)
    reference.generation_config = GenerationConfig()  # that of BART forces the last token
    return generate(reference, PROMPT, NEW, **desk.engine.anatomy.keep_last)


def goes_through(desk: Desk, sites: list[str], step: int, plain: Outcome) -> None:
    """Fail unless a run that stops at these sites, goes on and stops again ends as one that never stopped."""
    desk.open()
    walk(desk, sites, step)
    assert tuple(desk.session().tokens[len(PROMPT) :]) == plain.tokens, sites
    assert torch.equal(desk.logits(), plain.logits), sites


@every_step
def test_a_stop_at_any_point_changes_no_bit(desk: Desk, plain: Outcome, step: int) -> None:
    sites = point_sites(desk, tuple(range(desk.layers)), whole=True)
    goes_through(desk, [site for site in sites if resolves(desk, site)], step, plain)  # not all have an ln_final
    desk.close_all()


@every_step
def test_a_stop_at_any_module_alone_changes_no_bit(desk: Desk, plain: Outcome, step: int) -> None:
    for site in module_sites(desk, (desk.layers // 2,)):
        goes_through(desk, [site], step, plain)
    desk.close_all()
