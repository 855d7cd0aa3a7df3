"""The contract, family by family: a pass that is stopped anywhere between its layers goes on bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add
from tests.engine.counting import LayerCount
from tests.engine.desk import Desk, Outcome, array, build_desk, tokens
from tests.engine.plain import generate, plain_of
from tests.families import build, enough_layers

pytestmark = pytest.mark.drawn

FAMILIES = (
    "llama",
    "gpt2",
    "mistral",
    "qwen3",
    "gemma3_text",
    "phi3",
    "mixtral",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
    "deepseek_v3",
    "mamba2",
    "jamba",
)
CASES = [(family, torch.float32) for family in FAMILIES] + [
    (family, torch.bfloat16) for family in ("llama", "gemma3_text", "jamba")
]
PROMPT = tokens(14)  # longer than the windows of 8; the third generated token begins a second page of 16
NEW = 5
STEPS = range(4)  # the prefill and three decode steps
# The usual run stops each family at every boundary of the prefill and of the step that begins a page, and those whose
# caches differ in kind (windows, a compressed form, states) also in one of the two steps between, which begin no page.
# The slow run has the rest.
AS_OTHERS = ("mistral", "qwen3", "phi3", "opt", "falcon")  # in their layers and caches: in the slow run
UNLIKE = ("llama", "gemma3_text", "deepseek_v3", "mamba2", "jamba")
BETWEEN = 1
REST = 2


def names(case: tuple[str, torch.dtype]) -> str:
    return f"{case[0]}-{str(case[1]).removeprefix('torch.')}"


def stopped_at() -> list[Any]:
    """Every family in every step, as parameters."""
    found = []
    for case, step in itertools.product(CASES, STEPS):
        unlike = case[0] in UNLIKE and case[1] is torch.float32
        usual = case[0] not in AS_OTHERS and step != REST and (step != BETWEEN or unlike)
        marks = () if usual else (pytest.mark.slow,)
        found.append(pytest.param(case, step, id=f"{names(case)}-{step}", marks=marks))
    return found


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> tuple[Desk, LayerCount, Outcome]:
    family, dtype = request.param
    layers = enough_layers(family)
    model = build(family, dtype=dtype, layers=layers)
    desk = build_desk(model)
    count = LayerCount(model, desk.engine.anatomy.layers)
    return desk, count, generate(plain_of(family, dtype, layers=layers), PROMPT, NEW)


@pytest.fixture(autouse=True)
def nothing_left(built: tuple[Desk, LayerCount, Outcome]) -> Iterator[None]:
    yield
    built[0].close_all()


class TestExact:
    @pytest.mark.parametrize("built", CASES, indirect=True, ids=names)
    def test_an_uninterrupted_run_is_generate(self, built: tuple[Desk, LayerCount, Outcome]) -> None:
        desk, count, plain = built
        desk.open()
        with count.expect(*[NEW] * desk.layers):
            finished = desk.run(PROMPT, NEW)
        assert desk.outcome(finished) == plain
        assert (finished.layers_run, finished.passes) == (NEW * desk.layers, NEW)

    @pytest.mark.parametrize(("built", "step"), stopped_at(), indirect=["built"])
    def test_a_stop_at_every_boundary_changes_no_bit(self, built: tuple[Desk, LayerCount, Outcome], step: int) -> None:
        desk, count, plain = built
        for boundary in range(desk.layers + 1):
            stop_edit_and_go_back(desk, count, plain, boundary, step)
            desk.close_all()


def push(seed: int) -> Add:
    return Add(vector=array(torch.randn(32, generator=torch.Generator().manual_seed(seed))), coef=10.0)


def telling_push(desk: Desk, name: str) -> Add:
    """A push that changes the next token: after the last layer no other one shows in the tokens that follow."""
    for seed in range(8):
        desk.edit(push(seed), name)
        changed = desk.ask(ask.MeasureEffect(session=name)).effect.top1_changed
        desk.ask(ask.RevertEdits(session=name))
        if changed:
            return push(seed)
    raise AssertionError("no edit changed the next token")


def stop_edit_and_go_back(desk: Desk, count: LayerCount, plain: Outcome, boundary: int, step: int) -> None:
    """Stop; a fork goes on edited, and first; so does the session itself; then both unedited, from the same stop."""
    layers = desk.layers
    before, rest = [1] * boundary + [0] * (layers - boundary), NEW - step - 1
    after = [1 - ran + rest for ran in before]
    desk.open("a")
    desk.stop_at(f"resid_post.{boundary - 1}" if boundary else "resid_pre.0", f"step == {step}")
    with count.expect(*[ran + step for ran in before]):
        paused = desk.run(PROMPT, NEW)
    assert (paused.layer, paused.step) == (boundary, step)
    assert paused.layers_run == step * layers + boundary

    desk.fork("b")
    pushed = telling_push(desk, "b") if boundary == layers else push(0)
    desk.edit(pushed, "b")
    with count.expect(*after):
        edited = desk.resume("b")
    assert edited.layers_run == NEW * layers
    branch = desk.outcome(edited, "b")
    assert not torch.equal(branch.logits, plain.logits), "the edit did nothing"

    desk.edit(pushed)
    with count.expect(*after):
        assert desk.outcome(desk.resume()) == branch
    for name in ("a", "b"):
        again = desk.back(name=name)
        assert (again.layer, again.step, again.tokens) == (boundary, step, paused.tokens)
        assert again.layers_run == paused.layers_run
        with count.expect(*after):
            finished = desk.resume(name)
        assert (finished.layers_run, finished.passes) == (NEW * layers, NEW)
        assert desk.outcome(finished, name) == plain
