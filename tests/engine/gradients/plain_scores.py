"""One attention score by plain Hugging Face modules and torch: queries and keys are computed by hand from the outputs
of all earlier modules, with each norm's scale held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.device import DEVICE

Parts = dict[str, Tensor]  # [S, D], by name


@dataclass
class PlainScore:
    """`parts` sum to what enters the layer, float64 [S, D]; `queries` and `keys` are linear in it, [S, H, d]."""

    parts: Parts
    queries: Callable[[Tensor], Tensor]
    keys: Callable[[Tensor], Tensor]
    constants: tuple[Tensor, Tensor]
    scale: float

    def by_key(self, head: int, query: int, key: int) -> dict[str, float]:
        fixed = (self.queries(sum(self.parts.values())) + self.constants[0])[query, head]  # type: ignore[arg-type]
        found = {name: float(fixed @ self.keys(one)[key, head]) * self.scale for name, one in self.parts.items()}
        return found | {"constant": float(fixed @ self.constants[1][key, head]) * self.scale}

    def by_query(self, head: int, query: int, key: int) -> dict[str, float]:
        fixed = (self.keys(sum(self.parts.values())) + self.constants[1])[key, head]  # type: ignore[arg-type]
        found = {name: float(fixed @ self.queries(one)[query, head]) * self.scale for name, one in self.parts.items()}
        return found | {"constant": float(fixed @ self.constants[0][query, head]) * self.scale}


def recorded(model: Any, modules: dict[str, Any], line: tuple[int, ...]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the first input and the output of modules in one pass, float64 without the batch."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            made = output[0] if isinstance(output, tuple) else output
            found[name] = tuple(one[0].detach().double().cpu() for one in (given, made))  # type: ignore[assignment]

        return hook

    handles = [one.register_forward_hook(keep(name), with_kwargs=True) for name, one in modules.items()]
    with torch.inference_mode():
        model(torch.tensor([line], device=DEVICE), use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def held_norm(norm: Any, x: Tensor, *, plus_one: bool) -> Callable[[Tensor], Tensor]:
    """Return an RMS norm with the scale that it has at x; Gemma's gain is one plus its weight."""
    epsilon = getattr(norm, "variance_epsilon", None) or norm.eps
    scale = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    gain = norm.weight.detach().double().cpu() + (1 if plus_one else 0)
    return lambda y: y * scale * gain


def rotated(x_SHd: Tensor, base: float) -> Tensor:
    length, _, width = x_SHd.shape
    turns = torch.arange(length).double()[:, None] / base ** (torch.arange(0, width, 2).double() / width)
    cos, sin = (torch.cat([one, one], -1)[:, None] for one in (turns.cos(), turns.sin()))
    half = width // 2
    return x_SHd * cos + torch.cat([-x_SHd[..., half:], x_SHd[..., :half]], -1) * sin


def rope(config: Any) -> float:
    return float((getattr(config, "rope_parameters", None) or {}).get("rope_theta") or config.rope_theta)


def heads_of(linear: Any, given_SD: Tensor, heads: int) -> Tensor:
    """Return what each head writes [H, S, D]: its columns of the input through its part of the output map."""
    weight = linear.weight.detach().double().cpu()
    blocks = zip(given_SD.chunk(heads, -1), weight.chunk(heads, 1), strict=True)
    return torch.stack([block @ part.T for block, part in blocks])


def plain_score(model: Any, line: tuple[int, ...], layer: int) -> PlainScore:
    """Return the scores of a layer of a Llama, a Qwen 3 or a Gemma 2."""
    config, layers = model.config, model.model.layers
    kind, heads, groups = config.model_type, config.num_attention_heads, config.num_key_value_heads
    gemma = kind == "gemma2"
    modules = {f"layer {n}": one for n, one in enumerate(layers)}
    modules |= {f"o {n}": one.self_attn.o_proj for n, one in enumerate(layers)}
    modules |= {f"mlp {n}": one.mlp for n, one in enumerate(layers)}
    if gemma:
        modules |= {f"attn norm {n}": one.post_attention_layernorm for n, one in enumerate(layers)}
        modules |= {f"mlp norm {n}": one.post_feedforward_layernorm for n, one in enumerate(layers)}
    seen = recorded(model, modules, line)
    parts: Parts = {"embed": seen["layer 0"][0]}
    for n in range(layer):
        written = heads_of(layers[n].self_attn.o_proj, seen[f"o {n}"][0], heads)
        made = seen[f"mlp {n}"][1]
        if gemma:
            behind = held_norm(layers[n].post_attention_layernorm, seen[f"attn norm {n}"][0], plus_one=True)
            written, made = behind(written), seen[f"mlp norm {n}"][1]
        parts |= {f"z.{n}[{head}]": one for head, one in enumerate(written)} | {f"mlp_out.{n}": made}
    entered, attention = seen[f"layer {layer}"][0], layers[layer].self_attn
    norm = held_norm(layers[layer].input_layernorm, entered, plus_one=gemma)

    def mapped(linear: Any, count: int, inner: Any) -> Callable[[Tensor], Tensor]:
        weight = linear.weight.detach().double().cpu()

        def by_head(x: Tensor) -> Tensor:
            return (norm(x) @ weight.T).reshape(len(x), count, -1)

        held = held_norm(inner, by_head(entered), plus_one=False) if inner is not None else lambda y: y
        return lambda x: rotated(held(by_head(x)), rope(config)).repeat_interleave(heads // count, 1)

    queries = mapped(attention.q_proj, heads, getattr(attention, "q_norm", None))
    keys = mapped(attention.k_proj, groups, getattr(attention, "k_norm", None))
    width = config.query_pre_attn_scalar if gemma else attention.head_dim
    nothing = torch.zeros(1, dtype=torch.float64).expand(len(line), heads, attention.head_dim)
    return PlainScore(parts=parts, queries=queries, keys=keys, constants=(nothing, nothing), scale=width**-0.5)


def plain_score_of_gpt2(model: Any, line: tuple[int, ...], layer: int) -> PlainScore:
    blocks, heads, width = model.transformer.h, model.config.n_head, model.config.n_embd
    modules = {f"layer {n}": one for n, one in enumerate(blocks)}
    modules |= {f"o {n}": one.attn.c_proj for n, one in enumerate(blocks)}
    modules |= {f"mlp {n}": one.mlp for n, one in enumerate(blocks)}
    seen = recorded(model, modules, line)
    at = model.transformer.wpe.weight.detach().double().cpu()[: len(line)]
    parts: Parts = {"embed": seen["layer 0"][0] - at, "W_pos": at}
    for n in range(layer):
        weight = blocks[n].attn.c_proj.weight.detach().double().cpu()
        cut = zip(seen[f"o {n}"][0].chunk(heads, -1), weight.chunk(heads, 0), strict=True)
        parts |= {f"z.{n}[{head}]": one @ matrix for head, (one, matrix) in enumerate(cut)}
        bias = blocks[n].attn.c_proj.bias.detach().double().cpu()
        parts |= {f"bias.{n}": bias.expand_as(at), f"mlp_out.{n}": seen[f"mlp {n}"][1]}
    entered, norm, attention = seen[f"layer {layer}"][0], blocks[layer].ln_1, blocks[layer].attn.c_attn
    weight, bias = (one.detach().double().cpu() for one in (attention.weight, attention.bias))
    gain, shift = (one.detach().double().cpu() for one in (norm.weight, norm.bias))
    scale = (entered.var(-1, correction=0, keepdim=True) + norm.eps).rsqrt()

    def mapped(number: int) -> Callable[[Tensor], Tensor]:
        matrix = weight.chunk(3, 1)[number]
        return lambda x: ((x - x.mean(-1, keepdim=True)) * scale * gain @ matrix).reshape(len(x), heads, -1)

    def constant(number: int) -> Tensor:
        made = shift @ weight.chunk(3, 1)[number] + bias.chunk(3)[number]
        return made.reshape(1, heads, -1).expand(len(line), -1, -1)

    each = (constant(0), constant(1))
    return PlainScore(parts=parts, queries=mapped(0), keys=mapped(1), constants=each, scale=(width // heads) ** -0.5)
