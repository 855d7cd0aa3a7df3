"""Rules of one site: each takes the operations of its formula and three of its size, on what the one before left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.wire.edits import Add, Clamp, Edit, NormMatch, Orthogonal, ProjectionCap, ProjectOut, Scale, Zero
from tests.device import DEVICE
from tests.engine.desk import Desk, array, desk_of, tokens
from tests.engine.interventions.test_rules import V, at, steered, vector
from tests.engine.methods.rule_hooks import EDITS
from tests.engine.plain import generate, plain_of

PROMPT, NEW = tokens(12), 5


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama")
    desk.open()
    yield desk
    desk.close_all()


# of a kind's formula, without those on the edit's own array
OPERATIONS = {Scale: 1, Add: 1, Clamp: 1, ProjectOut: 5, NormMatch: 4, Orthogonal: 5, ProjectionCap: 6}


class Counted(TorchDispatchMode):
    """Counts the operations that run inside it, and apart from them the casts, which find nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.casts = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cast = function is torch.ops.aten.to.dtype
        self.count, self.casts = self.count + (not cast), self.casts + cast
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "edit", [edit for edit, _ in EDITS if type(edit) in OPERATIONS], ids=lambda edit: type(edit).__name__
)
def test_one_more_rule_of_a_site_takes_the_operations_of_its_formula_and_three(desk: Desk, edit: Edit) -> None:
    number = desk.steer("resid_post.4", edit).rule.number
    rule, raw = desk.session().rules[number], torch.randn(1, len(PROMPT), 32, device=DEVICE)
    positions = range(len(PROMPT))
    met = SiteValue(tap=rule.taps[0], raw=raw, tokens=PROMPT, positions=positions, step=0, lens=None)
    with torch.inference_mode():
        assert rule.apply(met, counted=True) is not None  # its arrays are on the device from here on
        with Counted() as operations:
            rule.apply(met, counted=True)
    assert operations.count == OPERATIONS[type(edit)] + 3
    assert operations.casts <= 3  # of the value before, for the formula and the size, and of the one after


def test_a_rule_of_every_layer_is_marked_once_in_a_pass(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.steer("resid_post.*")
    marked, mark = [], Rule.mark
    monkeypatch.setattr(Rule, "mark", lambda rule: marked.append(1) or mark(rule))
    desk.run(PROMPT, NEW)
    assert len(marked) == NEW


def test_rules_of_one_site_apply_one_after_another(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=1.5))
    desk.steer("resid_post.4", Zero(), positions=(5,))
    desk.steer("resid_post.4", Add(vector=array(V), coef=0.5))
    model = plain_of("llama")
    zeroed = at([5], lambda row: row * 0)
    with steered(model, lambda h, fed: zeroed(h * 1.5, fed) + 0.5 * vector(h)):
        expected = generate(model, PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected
