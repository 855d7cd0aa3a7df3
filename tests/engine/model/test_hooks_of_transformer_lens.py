"""Names of TransformerLens's hooks in every family: each is the value that its source names, found by a sum or a plain
hook on the map, or it is refused, and that exactly where our point has another value."""

from __future__ import annotations

import re

import pytest
import torch

from djinn_jupyter.errors import UnknownSite
from tests.engine.model.looking import Subject, run, subject
from tests.engine.model.test_points import layers_with
from tests.families import FAMILIES


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    """A family; its tests run one after the other, so that it is built once."""
    return str(request.param)


def test_outputs_of_blocks_are_what_they_add(name: str) -> None:
    tiny = subject(name)
    for n in layers_with(tiny, "attn_out", "mlp_out"):
        blocks = [f"blocks.{n}.hook_attn_out", f"blocks.{n}.hook_mlp_out"]
        refused = refused_hooks(tiny, blocks)
        ends = [f"attn_out.{n}", f"mlp_out.{n}"] if refused else blocks
        seen = run(tiny, f"resid_pre.{n}", *ends, f"resid_post.{n}")
        before, attention, mlp, after = seen.values.values()
        assert torch.allclose(before + attention + mlp, after, atol=1e-5) != bool(refused)
        if tiny.has("resid_mid", n) and not refused:
            middle = run(tiny, f"blocks.{n}.hook_resid_mid")[f"blocks.{n}.hook_resid_mid"]
            assert torch.equal(before + attention, middle)
            assert torch.equal(middle + mlp, after)


def test_queries_keys_and_logits_are_what_their_maps_return(name: str) -> None:
    """A name is refused exactly where the point has another value."""
    tiny = subject(name)
    maps: dict[str, tuple[str, torch.nn.Module]] = {"unembed.hook_out": ("logits", tiny.model.get_output_embeddings())}
    for n in layers_with(tiny, "q"):
        projections = {path.rpartition(".")[2]: module for path, module in tiny.anatomy.layers[n].named_modules()}
        maps |= {
            f"blocks.{n}.attn.hook_{one}": (f"{one}.{n}", projections[f"{one}_proj"])
            for one in ("q", "k", "v")
            if tiny.has(one, n) and f"{one}_proj" in projections
        }
    refused = refused_hooks(tiny, list(maps))
    for hook, (point, module) in maps.items():
        made: list[torch.Tensor] = []
        with module.register_forward_hook(lambda module, given, returned, made=made: made.append(returned.clone())):
            seen = run(tiny, *([] if point == "logits" else [point]))
        value = seen.logits if point == "logits" else seen[point]
        assert value is not None
        alike = value.numel() == made[0].numel() and torch.equal(value.reshape(made[0].shape), made[0])
        assert alike != (hook in refused), hook


def refused_hooks(tiny: Subject, hooks: list[str]) -> set[str]:
    """Return those that are refused: each sentence says which site to write, and there is one."""
    refused = set[str]()
    for hook in hooks:
        try:
            tiny.tap(hook)
        except UnknownSite as error:
            tiny.tap(re.findall(r": write (\S+) for", str(error))[0])
            refused.add(hook)
    return refused
