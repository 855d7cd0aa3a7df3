"""Names of TransformerLens's hooks in every family: each is the value that its source names, found by a sum or a plain
hook on the map, or it is refused, and that exactly where our point has another value."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.model.discovery.points import COMPRESSED, PARTLY_SHARED
from djinn_jupyter.errors import UnknownSite
from tests.engine.model.looking import TOKENS, Subject, run, subject
from tests.engine.model.test_points import layers_with
from tests.families import FAMILIES, MORE, drawn

pytestmark = pytest.mark.drawn


@pytest.fixture(scope="module", params=drawn([*FAMILIES, *MORE]))
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
        named = reversed(list(tiny.anatomy.layers[n].named_modules()))  # the first, not those of cross-attention
        projections = {path.rpartition(".")[2]: module for path, module in named}
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
        alike = value.numel() == made[0].numel() and torch.equal(value.reshape(made[0].shape), made[0])
        latent = (COMPRESSED, PARTLY_SHARED)
        behind = point[0] == "q" and tiny.anatomy.taps["k", int(point[2:])] in latent  # the rotary embedding
        assert (alike and not behind) != (hook in refused), hook


ATTENTION = ("self_attn", "attn", "attention", "self_attention", "mixer")
MLP = ("mlp", "ffn", "feed_forward", "block_sparse_moe")


def test_outputs_of_modules_are_what_these_return(name: str) -> None:
    """Also what a module returns that adds the residual itself (Bloom, MPT)."""
    tiny = subject(name)
    for n in layers_with(tiny, "resid_pre"):
        for hook, point, paths in (("attn", "attn_out", ATTENTION), ("mlp", "mlp_out", MLP)):
            module = next((one for path, one in tiny.anatomy.layers[n].named_children() if path in paths), None)
            if module is None or not tiny.has(point, n):
                continue
            made = returned(tiny, module, f"{point}.{n}")
            accepted = refused_hooks(tiny, [f"blocks.{n}.{hook}.hook_out"]) == set()
            assert torch.equal(made[0].reshape(made[1].shape), made[1]) == accepted, (n, hook)
            nnterp = {"attn": f"attentions_output[{n}]", "mlp": f"mlps[{n}]"}[hook]
            assert (refused_hooks(tiny, [nnterp]) == set()) == accepted


def returned(tiny: Subject, module: torch.nn.Module, site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a module returns, by a plain hook, and the value at a site in the same pass."""
    made: list[torch.Tensor] = []

    def hook(module: torch.nn.Module, given: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        made.append((output if isinstance(output, torch.Tensor) else output[0]).clone())

    with module.register_forward_hook(hook):
        seen = run(tiny, site)[site]
    return made[0], seen


def test_rotated_queries_and_keys_are_what_the_embedding_of_positions_returns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind multipliers, before the norms of Hunyuan, NanoChat and Llama 4, and a part of what DeepSeek V3.2 attends
    with: the last two kinds are refused."""
    tiny = subject(name)
    own = sys.modules[type(tiny.model).__module__]
    made = returned_by_rotations(monkeypatch, own)
    for n in layers_with(tiny, "q_rot"):
        rotated: list[torch.Tensor] = []
        layer = tiny.anatomy.layers[n]
        sites = [f"{one}.{n}" for one in ("q_rot", "k_rot") if tiny.has(one, n)]
        with layer.register_forward_pre_hook(lambda *_: made.clear()):
            with layer.register_forward_hook(lambda *_, rotated=rotated: rotated.extend(made)):
                seen = run(tiny, *sites)
        for site in sites if rotated else ():  # a layer without positions rotates nothing
            hook = f"blocks.{n}.attn.hook_rot_{site[0]}"
            assert is_among(seen[site], rotated) != bool(refused_hooks(tiny, [hook])), hook


def is_among(value: torch.Tensor, made: list[torch.Tensor]) -> bool:
    """Return whether a value, or the part of each head that the model rotates, is one of these tensors."""
    forms = [form for one in made if one.ndim == 4 for form in (one[0], one[0].transpose(0, 1))]
    return any(torch.equal(value[..., : form.shape[-1]], form) for form in forms)


def returned_by_rotations(monkeypatch: pytest.MonkeyPatch, own: ModuleType) -> list[torch.Tensor]:
    """Return the list to which a model's functions for rotary embeddings add what they return."""
    made: list[torch.Tensor] = []

    def recorded(rotate: Any) -> Any:
        def rotating(*given: Any, **named: Any) -> Any:
            result = rotate(*given, **named)
            made.extend(one.clone() for one in (result if isinstance(result, tuple) else (result,)))
            return result

        return rotating

    for name, rotate in [*vars(own).items()]:
        if name.startswith("apply_rotary"):
            monkeypatch.setattr(own, name, recorded(rotate))
    return made


def test_scores_and_patterns_are_before_and_behind_the_softmax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores have biases (ALiBi), factors, caps and the mask in them; those with a sink's column are refused."""
    tiny = subject(name, "eager")
    met = softmaxes(tiny, monkeypatch)
    for n in layers_with(tiny, "attn_scores", "pattern"):
        hooks = [f"blocks.{n}.attn.hook_attn_scores", f"blocks.{n}.attn.hook_pattern"]
        seen = list(run(tiny, f"attn_scores.{n}", f"pattern.{n}").values.values())
        assert any(all(map(torch.equal, pair, seen)) for pair in met if pair[0].shape == seen[0].shape)
        assert refused_hooks(tiny, hooks) == (set() if seen[1].shape[-1] == len(TOKENS) else set(hooks))


def softmaxes(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what every softmax of maps was given and returned in a plain pass, as [T, H, K]."""
    met: list[tuple[torch.Tensor, torch.Tensor]] = []
    softmax = torch.nn.functional.softmax

    def meeting(scores: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        pattern = softmax(scores, *given, **named)
        if scores.ndim >= 3:
            met.append((as_value(scores), as_value(pattern)))
        return pattern

    with monkeypatch.context() as patched, torch.no_grad():
        for one in (torch.nn.functional, torch):
            patched.setattr(one, "softmax", meeting)
        tiny.model(torch.tensor([TOKENS]))
    return met


def as_value(maps: torch.Tensor) -> torch.Tensor:
    """Return [T, H, K] of the maps of one prompt."""
    return maps.reshape(-1, *maps.shape[-2:]).transpose(0, 1).clone()


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
