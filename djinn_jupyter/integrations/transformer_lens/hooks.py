"""A hook point of TransformerLens, with its caller's functions: which of them only read, and how they are called with a
value of the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

LOOKING: Final = frozenset({"cache_hook", "save_hook"})
STOPPING: Final = "stop_hook"
THEIR_MODULE: Final = "transformer_lens.model_bridge.bridge_core"


def only_looks(hook_point: Any) -> bool:
    """Return whether all functions here only keep values, as those of `run_with_cache` and `get_caching_hooks`: these
    need no stop. Any other function may change its value."""
    return all(_own_name(handle.user_hook) in LOOKING for handle in hook_point.fwd_hooks)


def stops(hook_point: Any) -> bool:
    """Return whether `run_with_cache` ends the pass here (`stop_at_layer`)."""
    return any(_own_name(handle.user_hook) == STOPPING for handle in hook_point.fwd_hooks)


def _own_name(function: Any) -> str | None:
    """Return the name of a function of TransformerLens's own; None for one of its users."""
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__module__", None) == THEIR_MODULE
    return getattr(function, "__name__", None) if own else None


def fired(hook_point: Any, value: Tensor) -> Tensor:
    """Call the functions of a hook point in order. Return the changed value."""
    conversion = hook_point.hook_conversion
    if conversion is None:
        left: Tensor = hook_point(value)
        return left
    left = conversion.convert(hook_point(conversion.revert(value)))
    return left


# The divisor of a norm, and the quotient: two hook points of TransformerLens that are not sites, because the engine's
# norms are whole modules. They follow from the norm's input, as TransformerLens computes them.


def of_norm(norm: Any, hook: str, value: Tensor) -> Tensor:
    """Return `hook_scale` or `hook_normalized` of one of TransformerLens's norms for this input."""
    wide = value.float() if value.dtype.itemsize < 4 else value
    if not norm.uses_rms_norm:
        wide = wide - wide.mean(-1, keepdim=True)
    scale = (wide.pow(2).mean(-1, keepdim=True) + _eps_of(norm)).sqrt()
    return scale if hook == "hook_scale" else wide / scale


def _eps_of(norm: Any) -> float:
    module = norm.original_component
    found = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
    return float(norm.config.eps if found is None else found)


# The hook points of TransformerLens by their own names, and the site of each. Knows neither tool's code.

# Within `blocks.N.`, in the order of a pass. Several names of one tensor, such as ln1's input and the block's, are one
# site.
OF_A_BLOCK: Final = {
    "hook_in": "resid_pre",
    "ln1.hook_in": "resid_pre",
    "ln1.hook_out": "attn_in",
    "ln2.hook_in": "resid_mid",
    "ln2.hook_out": "mlp_in",
    "attn.hook_in": "attn_in",
    "attn.q.hook_out": "q",
    "attn.k.hook_out": "k",
    "attn.v.hook_out": "v",
    "attn.hook_rot_q": "q_rot",
    "attn.hook_rot_k": "k_rot",
    "attn.hook_attn_scores": "attn_scores",
    "attn.hook_pattern": "pattern",
    "attn.o.hook_in": "z",
    "attn.o.hook_out": "attn_out",
    "attn.hook_out": "attn_out",
    "ln1_post.hook_out": "attn_out_post",
    "mlp.hook_in": "mlp_in",
    "mlp.gate.hook_out": "mlp_pre",
    "mlp.in.hook_out": "mlp_pre",
    "mlp.out.hook_in": "mlp_post",
    "mlp.out.hook_out": "mlp_out",
    "mlp.hook_out": "mlp_out",
    "ln2_post.hook_out": "mlp_out_post",
    "hook_out": "resid_post",
}
OF_THE_MODEL: Final = {
    "embed.hook_out": "embed",
    "ln_final.hook_out": "ln_final",
    "unembed.hook_in": "ln_final",
    "unembed.hook_out": "logits",
}
# A norm's divisor and quotient follow from its input: they are read-only.
NORMS: Final = ("ln1", "ln2")
OF_A_NORM: Final = ("hook_scale", "hook_normalized")
# A change here reaches only the norm in TransformerLens, and the residual stream in Djinn: these too are read-only.
INPUTS_OF_NORMS: Final = frozenset({"ln1.hook_in", "ln2.hook_in"})
BY_HEAD_FIRST: Final = frozenset({"attn_scores", "pattern"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSite:
    """The site of a hook point. With `norm` it is the input of that norm, from which the hook's value is computed; with
    `table` it has the positions at which the model's table of positions is read. `changes` is False where the value is
    only read."""

    site: str
    heads_first: bool = False
    norm: str | None = None
    table: bool = False
    changes: bool = True


def hook_sites(layers: int, hooks: Iterable[str]) -> dict[str, HookSite]:
    """Return the sites of the hook points that Djinn knows, in the order of a pass."""
    there = set(hooks)
    return {name: site for name, site in _all(layers) if name in there}


def _all(layers: int) -> Iterator[tuple[str, HookSite]]:
    model = {name: HookSite(site=point) for name, point in OF_THE_MODEL.items()}
    yield "embed.hook_out", model.pop("embed.hook_out")
    yield "pos_embed.hook_out", HookSite(site="embed", table=True, changes=False)
    for layer in range(layers):
        block = f"blocks.{layer}"
        for name, point in OF_A_BLOCK.items():
            yield (
                f"{block}.{name}",
                HookSite(
                    site=f"{point}.{layer}", heads_first=point in BY_HEAD_FIRST, changes=name not in INPUTS_OF_NORMS
                ),
            )
        for norm in NORMS:
            yield from _of_norm(f"{block}.{norm}", f"{OF_A_BLOCK[f'{norm}.hook_in']}.{layer}")
    yield "ln_final.hook_in", HookSite(site=f"resid_post.{layers - 1}")
    yield from _of_norm("ln_final", f"resid_post.{layers - 1}")
    yield from model.items()


def _of_norm(norm: str, site: str) -> Iterator[tuple[str, HookSite]]:
    for hook in OF_A_NORM:
        yield f"{norm}.{hook}", HookSite(site=site, norm=norm, changes=False)


# The interventions of TransformerLens's drivers: functions of a value, or the same as data.

Function = Callable[[Tensor], Tensor]
OPS: Final = ("suppress", "scale", "add", "set")
NEEDED: Final = {"scale": "factor", "add": "value", "set": "value"}


def function_of(name: str, given: Any) -> Function:
    """Return an intervention as a function of the value [lines, positions, ...]. ValueError for an invalid one."""
    if callable(given):
        function: Function = given
        return function
    if not isinstance(given, Mapping) or given.get("op") not in OPS:
        raise ValueError(
            f"An intervention at {name!r} is a function or {{'op': one of {', '.join(OPS)}}}, not {given!r}."
        )
    needed = NEEDED.get(given["op"])
    if needed is not None and needed not in given:
        raise ValueError(f"The intervention {given['op']!r} at {name!r} needs {needed!r}.")
    return lambda value: _applied(given, value)


def _applied(spec: Mapping[str, Any], value: Tensor) -> Tensor:
    changed = value.clone()
    chosen = spec.get("pos")
    rows = slice(None) if chosen is None else [chosen] if isinstance(chosen, int) else list(chosen)
    part = changed[:, rows]
    match spec["op"]:
        case "suppress":
            changed[:, rows] = 0
        case "scale":
            changed[:, rows] = part * spec["factor"]
        case "add":
            changed[:, rows] = part + _given(spec, value)
        case "set":
            changed[:, rows] = _given(spec, value).expand_as(part)
    return changed


def _given(spec: Mapping[str, Any], value: Tensor) -> Tensor:
    return torch.as_tensor(spec["value"], dtype=value.dtype)
