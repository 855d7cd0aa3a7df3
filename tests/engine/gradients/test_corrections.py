"""AtP*'s corrections: against the same by hand on the plain model, and on toys where the plain estimate fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.sweep.request import Estimate, Sweep, Swept
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.gradients import plain_corrections
from tests.engine.gradients.plain_corrections import A, B
from tests.families import build

LAYERS = 3
CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
FAMILIES = (
    "mistral",  # windows
    "gemma2",  # soft caps on scores
    "falcon",  # one head of keys for all, fused projections
)
METRIC = f"logit({A}) - logit({B})"


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama", layers=LAYERS).double()


@pytest.fixture(scope="module")
def desk(model: Any) -> Any:
    desk = build_desk(model)
    yield desk
    desk.close_all()


def asked(desk: Desk, **fields: Any) -> Any:
    desk.open("a")
    known = {"corrupted": CORRUPTED, "clean": CLEAN, "over": ("layer", "position", "head"), "metrics": (METRIC,)}
    return desk.ask(Sweep(session="a", **{**known, **fields}))


def estimated(desk: Desk, *corrections: Any, steps: int = 1, **fields: Any) -> Tensor:
    return values(asked(desk, estimate=Estimate(corrections=corrections, steps=steps), **fields))


def values(reply: Any) -> Tensor:
    assert isinstance(reply, Swept), reply
    return to_tensor(reply.measured[0].values)


def changes(desk: Desk, **fields: Any) -> Tensor:
    reply = asked(desk, mode="exact", **fields)
    return values(reply) - reply.measured[0].corrupted


def near(found: Tensor, expected: Tensor, within: float = 1e-5) -> bool:
    return bool((found - expected).abs().max() < within * expected.abs().max())


@pytest.mark.parametrize(("site", "maps"), [("q", "q_proj"), ("k", "k_proj")])
def test_queries_and_keys_are_those_replaced_one_by_one(desk: Desk, model: Any, site: str, maps: str) -> None:
    expected = plain_corrections.carried(model, CLEAN, CORRUPTED, maps)
    found = estimated(desk, "attention", site=site)
    assert found.shape == expected.shape
    assert near(found, expected)
    assert not near(estimated(desk, site=site), expected, within=0.01)


def test_gradients_that_bypass_each_layer_are_those_of_hooks(desk: Desk, model: Any) -> None:
    expected = plain_corrections.bypassed(model, CLEAN, CORRUPTED)
    found = estimated(desk, "cancellation", site="z")
    assert near(found, expected)
    assert not near(estimated(desk, site="z").abs(), expected, within=0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_one_by_one_are_those_of_runs_with_one_key_changed(family: str) -> None:
    desk = build_desk(build(family, layers=2).double())
    every = estimated(desk, "attention", site="k")
    for position in (3, 4, 6):
        alone = estimated(desk, "attention", site="k", over=("layer", "head"), positions=(position,))
        assert (every[:, position] - alone).abs().max() < 1e-5 * every.abs().max()
    assert every.abs().max() > 0
    desk.close_all()


def toy(scale: float) -> Any:
    """Return a model that is linear behind its last layer's attention, whose queries are larger by `scale`."""
    model = build("gpt_neox", layers=LAYERS).double()
    model.gpt_neox.final_layer_norm = torch.nn.Identity()
    heads, width = model.config.num_attention_heads, model.config.hidden_size // model.config.num_attention_heads
    fused = model.gpt_neox.layers[-1].attention.query_key_value
    with torch.no_grad():
        fused.weight.view(heads, 3, width, -1)[:, 0] *= scale
        fused.bias.view(heads, 3, width)[:, 0] *= scale
    return model


@pytest.mark.parametrize(
    ("site", "over", "scale"),
    [("q", ("position", "head"), 1.0), ("k", ("position", "head"), 1e3), ("k", ("head",), 1.0), ("q", ("head",), 1e3)],
)
def test_what_attention_makes_of_a_change_is_exact_where_all_behind_it_is_linear(
    site: str, over: tuple[str, ...], scale: float
) -> None:
    desk = build_desk(toy(scale))
    fields = {"site": f"{site}.{LAYERS - 1}", "over": over}
    expected = changes(desk, **fields)
    assert near(estimated(desk, "attention", **fields), expected)
    desk.close_all()


def test_saturated_attention_hides_the_strongest_cell_and_its_correction_finds_it() -> None:
    desk = build_desk(toy(1e3))
    fields = {"site": f"q.{LAYERS - 1}", "over": ("position", "head")}
    expected, plain = changes(desk, **fields), estimated(desk, **fields)
    strongest = expected.abs().argmax()
    assert plain.flatten()[strongest].abs() < 1e-3 * expected.abs().max()
    assert estimated(desk, "attention", **fields).abs().argmax() == strongest
    desk.close_all()


def cancelling(times: float) -> Any:
    """Return a model whose MLPs behind the first are larger by `times`."""
    model = build("gpt2", layers=LAYERS).double()
    with torch.no_grad():
        for layer in model.transformer.h[1:]:
            layer.mlp.c_proj.weight *= times
    return model


def plain_scores(model: Any) -> Tensor:
    """Return (clean - corrupted) output of the first MLP x gradient, by position."""
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    hooks = [model.get_input_embeddings().register_forward_hook(lambda m, i, output: output.requires_grad_())]
    hooks.append(model.transformer.h[0].mlp.register_forward_hook(keep))
    with torch.enable_grad():
        model(torch.tensor([CLEAN], device=DEVICE), use_cache=False)
        row = model(torch.tensor([CORRUPTED], device=DEVICE), use_cache=False).logits[0, -1]
        (row[A] - row[B]).backward()
    for hook in hooks:
        hook.remove()
    gradient = kept[1].grad
    return ((kept[0] - kept[1]).detach() * gradient)[0].sum(-1)


def test_a_cell_whose_paths_cancel_is_hidden_and_the_correction_finds_it() -> None:
    low, high = -4.0, -2.0  # between these the way through later MLPs takes back what the direct way adds
    assert plain_scores(cancelling(low))[-1] < 0 < plain_scores(cancelling(high))[-1]
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if plain_scores(cancelling(middle))[-1] < 0 else (low, middle)
    desk = build_desk(cancelling(low))
    fields = {"site": "mlp_out.0", "over": ("position",)}
    expected, plain = changes(desk, **fields), estimated(desk, **fields)
    corrected = estimated(desk, "cancellation", **fields)
    assert plain[-1].abs() < 1e-6 * plain.abs().max()
    assert plain[3:].abs().argmin() == len(plain[3:]) - 1
    assert corrected.argmax() == expected.abs().argmax() == len(expected) - 1
    desk.close_all()


def test_edits_positions_and_rows_of_the_line_are_heeded(desk: Desk) -> None:
    every = estimated(desk, "attention", site="k")
    some = estimated(desk, "attention", site="k", positions=(6, 4))
    assert torch.equal(some, every[:, [4, 6]])
    both = estimated(desk, "attention", "cancellation", site="k")
    assert (both >= 0).all()
    assert not near(both, every.abs(), within=0.01)


@pytest.mark.parametrize(
    ("fields", "corrections", "said"),
    [
        ({"site": "z"}, ("attention",), "is one of queries and keys"),
        ({"site": "q", "steps": 3}, ("attention",), "is of one step"),
    ],
)
def test_a_correction_that_says_nothing_is_refused(
    desk: Desk, fields: dict[str, Any], corrections: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        estimated(desk, *corrections, **fields)


def test_a_family_whose_heads_give_no_sum_of_values_says_so() -> None:
    desk = build_desk(build("gpt_oss", layers=LAYERS))
    with pytest.raises(UnknownSite, match="not carried through attention here"):
        estimated(desk, "attention", site="k")
    desk.close_all()
