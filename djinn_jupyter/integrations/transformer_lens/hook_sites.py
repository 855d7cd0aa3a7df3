"""The hook points of TransformerLens by their own names, and the site that each one is. Knows neither tool's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# Within `blocks.N.`, in the order of a pass. Where several names are one tensor, as ln1's input and the block's, they
# are one site.
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
# What a norm divides by, and its quotient, follow from its input: they are read, and never changed.
NORMS: Final = ("ln1", "ln2")
OF_A_NORM: Final = ("hook_scale", "hook_normalized")
# A change here reaches in TransformerLens the norm alone, and in Djinn the residual stream: these too are only read.
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
    """Return the sites of those of these hook points that Djinn knows, in the order of a pass."""
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
                    site=f"{point}.{layer}",
                    heads_first=point in BY_HEAD_FIRST,
                    changes=name not in INPUTS_OF_NORMS,
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
