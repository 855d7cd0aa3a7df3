"""What is said of a stop is said of the site that it names, with its selector: a plain hook has the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.widgets.stop import stop_view
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.sites import parse_site
from tests import saes
from tests.device import DEVICE
from tests.engine.added.adding import add, opened
from tests.engine.desk import Desk, tokens
from tests.engine.plain import plain_of

PROMPT = tokens(9)
HEADS = 4  # of 8 numbers; two heads of keys
PLAIN: dict[str, tuple[Callable[[Any], Any], str, int | None]] = {  # the module, its side, its heads
    "embed": (lambda model: model.model.embed_tokens, "output", None),
    "resid_pre.3": (lambda model: model.model.layers[3], "input", None),
    "attn_in.3": (lambda model: model.model.layers[3].input_layernorm, "output", None),
    "q.3": (lambda model: model.model.layers[3].self_attn.q_proj, "output", HEADS),
    "k.3": (lambda model: model.model.layers[3].self_attn.k_proj, "output", 2),
    "v.3": (lambda model: model.model.layers[3].self_attn.v_proj, "output", 2),
    "z.3": (lambda model: model.model.layers[3].self_attn.o_proj, "input", HEADS),
    "attn_out.3": (lambda model: model.model.layers[3].self_attn, "output", None),
    "resid_mid.3": (lambda model: model.model.layers[3].post_attention_layernorm, "input", None),
    "mlp_in.3": (lambda model: model.model.layers[3].post_attention_layernorm, "output", None),
    "mlp_post.3": (lambda model: model.model.layers[3].mlp.down_proj, "input", None),
    "mlp_out.3": (lambda model: model.model.layers[3].mlp, "output", None),
    "resid_post.3": (lambda model: model.model.layers[3], "output", None),
    "model.layers.3.mlp.gate_proj.output": (lambda model: model.model.layers[3].mlp.gate_proj, "output", None),
    "ln_final": (lambda model: model.model.norm, "output", None),
    "logits": (lambda model: model.lm_head, "output", None),
}
SELECTORS: tuple[tuple[int, ...] | None, ...] = (None, (1,), (1, 0))


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield from opened(llama)


def hooked(site: str) -> Tensor:
    """Return the value [T, ...] that a plain hook of the plain model sees."""
    find, side, heads = PLAIN[site]
    model, seen = plain_of("llama"), []

    def hook(module: Any, given: Any, kwargs: Any, made: Any = None) -> None:
        tensor = made if side == "output" else next(iter((*given, *kwargs.values())))
        seen.append((tensor[0] if isinstance(tensor, tuple) else tensor).clone())

    module = find(model)
    registered = (
        module.register_forward_hook(hook, with_kwargs=True)
        if side == "output"
        else module.register_forward_pre_hook(hook, with_kwargs=True)
    )
    with torch.no_grad():
        model(torch.tensor([PROMPT], device=DEVICE), use_cache=True, logits_to_keep=1)
    registered.remove()
    value = seen[0][0].cpu()
    return value if heads is None else value.unflatten(-1, (heads, -1))


def spelled(site: str, selector: tuple[int, ...] | None) -> str:
    return site if selector is None else f"{site}[{','.join(map(str, selector))}]"


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
@pytest.mark.parametrize("site", PLAIN)
def test_every_view_of_a_site_is_of_its_selected_part(desk: Desk, site: str, selector: tuple[int, ...] | None) -> None:
    named = spelled(site, selector)
    desk.ask(ask.Watch(session="a", site=named))
    desk.stop_at(named, when="step == 0")
    stop = desk.run(PROMPT)
    if site == "logits":
        stop = desk.ask(ask.ReadStop(session="a"))
    plain = hooked(site)
    part = plain if selector is None else plain[:, list(selector)]
    check(desk, stop, part, named)


def check(desk: Desk, stop: Any, part: Tensor, named: str, exact: bool = True) -> None:
    """Hold all that is said of the stop against a part of the value [T, ...]."""

    def same(one: Tensor, other: Tensor) -> bool:
        return torch.equal(one, other) if exact else torch.allclose(one, other, rtol=1e-4, atol=1e-5)

    norms = part.float().flatten(1).norm(dim=1)
    alone = part.numel() == len(part)
    assert (stop.site, stop.shape) == (str(parse_site(named)), tuple(part.shape))
    assert same(torch.tensor(stop.norms), norms)
    assert (stop.values is not None) == alone
    if alone:
        assert same(torch.tensor(stop.values), part.flatten())
    assert same(desk.value(), part)
    read = desk.ask(ask.ReadFigures(session="a", each=True))
    assert (read.site, read.shape) == (stop.site, stop.shape)
    np.testing.assert_allclose(to_tensor(read.each)[:, 4], norms, rtol=1e-5)
    pooled = desk.ask(ask.ReadPooled(session="a", last=1)).pooled
    assert (pooled.site, pooled.shape) == (stop.site, stop.shape)
    assert same(to_tensor(pooled.last), part[-1:])
    position = stop.positions[-1]
    for name, numbers in (("norm", stop.norms), ("value", stop.values)):
        if numbers is not None:
            said = desk.ask(ask.Evaluate(session="a", expression=name, position=position))
            assert (said.value, said.site) == (numbers[-1], stop.site)
    history = desk.ask(ask.ReadHistory(session="a")).stops[-1]
    assert {history.site, desk.describe().stopped_at, desk.logits_ahead().site} == {stop.site}
    card = stop_view(stop).plain.splitlines()
    assert f"{list(stop.shape)}" in next(line for line in card if line.startswith("value:"))
    assert ("value" if alone else "norm") in next(line for line in card if line.startswith("position")).split()


@pytest.mark.parametrize("selector", [(1,), (0,), (1, 3)], ids=str)
def test_of_an_added_module_what_is_said_is_of_the_features_named(
    desk: Desk, tmp_path: Path, selector: tuple[int, ...]
) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors, "standard"))
    desk.stop_at(spelled("sae.3", selector).replace(".3", ".4"))
    stop = desk.run(PROMPT)
    features = saes.encode(desk.value("resid_post.4"), tensors, "standard")[:, list(selector)]
    check(desk, stop, features, spelled("sae.4", selector), exact=False)


@pytest.mark.parametrize("named", ["z.3[1]", "resid_post.3[5]", "mlp_post.3[2,0]", "sae.4[1]"])
def test_a_condition_holds_where_the_card_shows_it(desk: Desk, tmp_path: Path, named: str) -> None:
    add(desk, saes.saved(tmp_path, saes.drawn(desk.engine.anatomy.hidden_size), "standard"))
    desk.stop_at(named)
    stop = desk.run(PROMPT)
    word, numbers = ("norm", stop.norms) if stop.values is None else ("value", stop.values)
    desk.clear()
    largest = max(numbers)
    for bound, meets in ((np.nextafter(np.float32(largest), np.float32(-np.inf)), True), (largest, False)):
        desk.stop_at(named, when=f"step == 0 and {word} > {float(bound)!r}")
        reply = desk.run(PROMPT, new=1)
        assert isinstance(reply, type(stop)) == meets
        if meets:
            assert dict(zip(reply.positions, numbers, strict=True))[reply.matched] == largest
        desk.clear()


def test_the_lens_of_a_feature_that_is_off_is_a_dash(desk: Desk, tmp_path: Path) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors, "standard"))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    features = desk.value("sae.4")
    feature = next(f for f in range(features.shape[1]) if 0 < (features[:, f] == 0).sum() < len(PROMPT))
    rows = desk.ask(ask.Lens(session="a", site=f"sae.4[{feature}]", top=3, tokens=(5,))).rows
    assert [bool(row.top) for row in rows] == [bool(row.chosen) for row in rows] == (features[:, feature] != 0).tolist()
    whole = desk.ask(ask.Lens(session="a", site="resid_post.4", top=3)).rows
    assert all(len(row.top) == 3 for row in whole)
