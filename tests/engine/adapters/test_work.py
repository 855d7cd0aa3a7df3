"""What else is done with a session is done with its adapter: sweeps, gradients, losses, heads, edits of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.circuits.request import AttributeEdges
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.methods.sweep.engine.checked_sweep import recipe_of
from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Zero
from tests import adapters
from tests.engine.adapters.adapting import ENDS, add, let_go, use
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.plain import generate
from tests.families import build

LAYERS = 3
PROMPT = tokens(10, seed=3)
OTHER = (*PROMPT[:4], *tokens(10, seed=4)[4:])
METRIC = "logit(17) - logit(42)"


@pytest.fixture(scope="module")
def tensors() -> adapters.Tensors:
    return adapters.drawn(build("llama", layers=LAYERS), ENDS["llama"])


@pytest.fixture(scope="module")
def desk(tensors: adapters.Tensors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The engine of a model, with an adapter of it added."""
    found = build_desk(build("llama", layers=LAYERS))
    add(found, adapters.saved(tmp_path_factory.mktemp("adapter"), tensors))
    yield found
    found.close_all()
    let_go(found)


@pytest.fixture(scope="module")
def peft(tensors: adapters.Tensors) -> Desk:
    """The engine of a model whose modules are PEFT's, with the products inside."""
    return build_desk(adapters.adapted(build("llama", layers=LAYERS), tensors))


@pytest.fixture(scope="module")
def merged(tensors: adapters.Tensors) -> Desk:
    """The engine of a model whose weights have the products added."""
    return build_desk(adapters.merged(build("llama", layers=LAYERS), tensors))


@pytest.fixture(autouse=True)
def empty(desk: Desk, peft: Desk, merged: Desk) -> Iterator[None]:
    yield
    for one in (desk, peft, merged):
        one.close_all()


def lines(desk: Desk, adapter: str | None) -> dict[str, str]:
    """Run two lines in sessions of a desk, with the adapter where one is named."""
    for name, prompt in (("corrupted", OTHER), ("clean", PROMPT)):
        desk.open(name)
        if adapter is not None:
            desk.ask(ask.SetAdapter(session=name, adapter=adapter))
        desk.run(prompt, 1, name)
    desk.open("sweep")
    return {"corrupted": "corrupted", "clean": "clean"}


def swept(desk: Desk, adapter: str | None, **fields: Any) -> Any:
    named = lines(desk, adapter)
    known = {"site": "resid_post", "over": ("layer", "position"), "metrics": (METRIC,)}
    return desk.ask(Sweep(session="sweep", **named, **{**known, **fields}))


def values(reply: Any) -> Tensor:
    return to_tensor(reply.measured[0].values)


@pytest.mark.parametrize("site", ["resid_post", "mlp_out"])
def test_a_sweep_of_its_lines_is_that_of_pefts_model(desk: Desk, peft: Desk, site: str) -> None:
    found, plain = (swept(one, adapter, mode="exact", site=site) for one, adapter in ((desk, "sql"), (peft, None)))
    assert torch.equal(values(found), values(plain))
    assert found.made.adapter.name == "sql"
    base = swept(desk, None, mode="exact", site=site)
    assert not torch.equal(values(base), values(plain))
    engine, made = desk.engine, found.made
    of = (made.asked, engine.runtime.description, engine.persistence.identity, made.attention)
    own, others = recipe_of(*of, made.adapter, ()), recipe_of(*of, None, ())
    assert own == found.recipe != others  # neither goes on from the other's cells


def test_cells_of_a_fast_sweep_are_computed_alone_and_it_says_so(desk: Desk, peft: Desk) -> None:
    found = swept(desk, "sql", mode="fast")
    assert any("with the adapter sql" in note for note in found.notes)
    assert torch.equal(values(found), values(swept(peft, None, mode="exact")))


def test_lines_of_two_models_are_not_swept_together(desk: Desk) -> None:
    named = lines(desk, "sql")
    desk.open("clean")
    desk.run(PROMPT, 1, "clean")
    with pytest.raises(UsageError, match="The sessions of the two lines have other adapters"):
        desk.ask(Sweep(session="sweep", **named, site="resid_post", over=("layer", "position"), metrics=(METRIC,)))


@pytest.mark.parametrize("site", ["resid_post", "attn_out"])
def test_gradients_go_through_the_adapter(desk: Desk, peft: Desk, site: str) -> None:
    asked = {"estimate": Estimate(steps=2), "site": site}
    found, plain = (values(swept(one, adapter, **asked)) for one, adapter in ((desk, "sql"), (peft, None)))
    assert torch.equal(found, plain)
    assert float(plain.abs().max()) > 1e-4
    assert not torch.equal(values(swept(desk, None, **asked)), plain)


@pytest.mark.parametrize("corrections", [(), ("attention",)])
def test_gradients_by_head_are_those_of_the_merged_model(
    desk: Desk, merged: Desk, corrections: tuple[Any, ...]
) -> None:
    asked = {"estimate": Estimate(corrections=corrections), "site": "q" if corrections else "z"}
    asked["over"] = ("layer", "head")
    found, plain = (values(swept(one, adapter, **asked)) for one, adapter in ((desk, "sql"), (merged, None)))
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-5)
    assert float(plain.abs().max()) > 1e-3


def test_edges_are_those_of_the_merged_model(desk: Desk, merged: Desk) -> None:
    found = []
    for one, adapter in ((desk, "sql"), (merged, None)):
        named = lines(one, adapter)
        found.append(to_tensor(one.ask(AttributeEdges(session="sweep", **named, metric=METRIC)).scores))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5, equal_nan=True)


def test_losses_under_a_session_are_those_of_its_adapter(desk: Desk, peft: Desk) -> None:
    use(desk, "tuned")
    peft.open("tuned")
    found = []
    for one in (desk, peft):
        one.open("losses")
        scored = one.ask(Score(session="losses", prompts=(PROMPT, OTHER), what="loss", rules_of="tuned"))
        found.append(to_tensor(scored.values))
    assert torch.equal(*found)


def test_a_fast_run_is_computed_alone_and_says_why(desk: Desk, tensors: adapters.Tensors) -> None:
    desk.open("base")
    use(desk, "tuned")
    replies: list[Any] = []
    for name in ("tuned", "base"):
        fast = ask.Run(session=name, tokens=PROMPT, max_new_tokens=6, ignore_eos=True, mode="fast")
        desk.post(fast, replies)
    while len(replies) < 2:
        desk.engine.tick()
    [tuned] = [one for one in replies if one.session == "tuned"]
    assert tuned.shared == 0
    assert tuned.note == "Each pass was computed alone, for passes with the adapter sql are not shared here."
    assert desk.logits("tuned").equal(
        generate(adapters.adapted(build("llama", layers=LAYERS), tensors), PROMPT, 6).logits
    )


def test_a_fork_with_edited_values_goes_on_with_the_adapter(desk: Desk, peft: Desk) -> None:
    found = []
    for one in (desk, peft):
        one.open("a")
        if one is desk:
            use(one, "a")
        one.run(PROMPT, 1)
        one.ask(ask.Fork(session="a", name="b", edit=Zero(), site="v.1", positions=(2,)))
        one.ask(ask.Run(session="b", tokens=(), extend=True, max_new_tokens=3, ignore_eos=True))
        found.append((one.session("b").tokens, one.logits("b")))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_parts_of_a_logit_by_head_are_those_of_the_merged_model_and_sum_to_it(desk: Desk, merged: Desk) -> None:
    use(desk, "tuned")
    merged.open("tuned")
    found = []
    for one in (desk, merged):
        one.stop_at(f"resid_post.{LAYERS - 1}", name="tuned")
        one.run(PROMPT, 1, "tuned")
        found.append(one.ask(Attribute(session="tuned", tokens=(17,), position=9, heads=True)))
    assert abs(found[0].rest) < 1e-4
    assert found[0].notes == ()
    parts, plain = (torch.tensor([part.value for part in one.contributions]) for one in found)
    torch.testing.assert_close(parts, plain, rtol=1e-3, atol=1e-5)


def test_neurons_behind_a_changed_map_are_not_told_apart(desk: Desk) -> None:
    use(desk, "tuned")
    desk.stop_at(f"resid_post.{LAYERS - 1}", name="tuned")
    desk.run(PROMPT, 1, "tuned")
    with pytest.raises(UnknownSite, match="write through a map that the adapter sql changes"):
        desk.ask(Attribute(session="tuned", tokens=(17,), position=9, neurons=True))
