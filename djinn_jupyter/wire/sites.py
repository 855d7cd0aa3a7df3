"""The spelling of a place in the network: `point.layer[selector]`, aliases of other tools, module paths.

Owns the grammar and the list of points. Only the engine knows the places of a given model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.base import Frozen

ATTENTION_POINTS: Final = (
    "attn_in",
    "q",
    "k",
    "v",
    "q_rot",
    "k_rot",
    "attn_scores",
    "pattern",
    "z",
    "attn_out",
    "attn_out_post",
)
MLP_POINTS: Final = ("mlp_in", "mlp_pre", "mlp_post", "mlp_out", "mlp_out_post")
LAYER_POINTS: Final = ("resid_pre", *ATTENTION_POINTS, "resid_mid", *MLP_POINTS, "resid_post")
MODEL_POINTS: Final = ("embed", "ln_final", "logits")
POINTS: Final = ("embed", *LAYER_POINTS, "ln_final", "logits")
HEAD_POINTS: Final = frozenset({"q", "k", "v", "q_rot", "k_rot", "attn_scores", "pattern", "z"})

# TransformerLens (new and legacy hook names) and nnterp, as their documentation spells them.
_TRANSFORMER_LENS: Final = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out",
    "hook_mlp_out": "mlp_out",
    "attn.hook_q": "q",
    "attn.hook_k": "k",
    "attn.hook_v": "v",
    "attn.hook_rot_q": "q_rot",
    "attn.hook_rot_k": "k_rot",
    "attn.hook_z": "z",
    "attn.hook_attn_scores": "attn_scores",
    "attn.hook_pattern": "pattern",
    "mlp.hook_pre": "mlp_pre",
    "mlp.hook_post": "mlp_post",
    "hook_in": "resid_pre",
    "hook_out": "resid_post",
    "attn.hook_in": "attn_in",
    "attn.hook_out": "attn_out",
    "mlp.hook_in": "mlp_in",
    "mlp.hook_out": "mlp_out",
}
_TRANSFORMER_LENS_MODEL: Final = {
    "hook_embed": "embed",
    "embed.hook_out": "embed",
    "ln_final.hook_out": "ln_final",
    "unembed.hook_out": "logits",
}
# Hooks of TransformerLens without a matching point, or where a change reaches less than a change of the point. The
# input of a trained module is found all the same.
_BEFORE: Final = "is what {0} is given before its norm, {1}: write {2}, or {3} for the value behind the norm"
_NORMALIZED: Final = "is the value before the norm's weight, by version and family also behind it: write {0}"
_NO_POINT: Final = {
    "hook_attn_in": _BEFORE.format("attention", "once for each head", "resid_pre.N", "attn_in.N"),
    "hook_mlp_in": _BEFORE.format("the MLP", "in a copy that it alone reads", "resid_mid.N", "mlp_in.N"),
    "ln1.hook_normalized": _NORMALIZED.format("attn_in.N"),
    "ln2.hook_normalized": _NORMALIZED.format("mlp_in.N"),
    "ln_final.hook_normalized": _NORMALIZED.format("ln_final"),
}
_READ: Final = {"hook_mlp_in": "resid_mid", "ln1.hook_normalized": "attn_in", "ln2.hook_normalized": "mlp_in"}
_NNTERP: Final = {
    "layers": "resid_post",
    "layers_input": "resid_pre",
    "layers_output": "resid_post",
    "attentions": "attn_out",
    "attentions_input": "attn_in",
    "attentions_output": "attn_out",
    "mlps": "mlp_out",
    "mlps_input": "mlp_in",
    "mlps_output": "mlp_out",
    "attention_probabilities": "pattern",
}
_NNTERP_MODEL: Final = {
    "token_embeddings": "embed",
    "embed_tokens": "embed",
    "ln_final": "ln_final",
    "logits": "logits",
}

_SELECTED = re.compile(r"^(?P<place>[^\[\]]+?)(?:\[(?P<selector>[-\d:, ]+)\])?$")
_BLOCK = re.compile(r"^blocks\.(?P<layer>\d+)\.(?P<hook>.+)$")
_NNTERP_LAYER = re.compile(r"^(?P<name>\w+)\[(?P<layer>\d+)\]$")
_POINT_LAYER = re.compile(r"^(?P<point>[a-z_][a-z0-9_]*)\.(?P<layer>\d{1,9})$")
_EVERY_LAYER = re.compile(r"^(?P<point>[a-z_]+)\.\*(?P<selector>\[[-\d:, ]+\])?$")
_MODULE_PATH = re.compile(r"^[A-Za-z_]\w*(\.\w+)*$")
MAX_SELECTED: Final = 4096


class Site(Frozen):
    """A place in the network.

    `point` is one of POINTS, the name of an added module, or `input` / `output` of the module at `path`. `layer` counts
    from 0. `selector` holds indices along the site's unit axis: heads for HEAD_POINTS, features for the others.
    """

    point: str
    layer: int | None = None
    selector: tuple[int, ...] | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = f"{self.path}.{self.point}" if self.path else self.point
        if self.layer is not None and not self.path:
            place += f".{self.layer}"
        return place if self.selector is None else f"{place}[{spell_selector(self.selector)}]"

    def whole(self) -> Site:
        """Return the same place without its selector."""
        return msgspec.structs.replace(self, selector=None)


OfHook = Callable[[str, Site], Site]


def spell_selector(indices: tuple[int, ...]) -> str:
    return ",".join(str(i) for i in indices)


def parse_selector(text: str) -> tuple[int, ...]:
    """Return `6`, `1,4` or `2:5` (end excluded) as indices."""
    indices: list[int] = []
    for part in text.split(","):
        start, colon, stop = part.strip().partition(":")
        try:
            span = range(int(start), int(stop)) if colon else range(int(start), int(start) + 1)
        except ValueError:
            raise UnknownSite(f"Selector [{text}] is not understood; write [6], [1,4] or [2:5].") from None
        if len(span) == 0 or len(indices) + len(span) > MAX_SELECTED or span.start < 0:
            raise UnknownSite(
                f"Selector [{text}] selects nothing, too much, or counts from the end; write [6] or [2:5]."
            )
        indices.extend(span)
    return tuple(indices)


def parse_site(text: str, of_hook: OfHook = lambda hook, site: site) -> Site:
    """Return the Site that `text` spells. A bare number is that layer's output; a dotted name of no point is a module
    path. `of_hook` maps a hook of TransformerLens, or nnterp's name for a layer, to a site of the model, given the site
    in most models."""
    text = text.strip()
    known = _from_other_tool(text, of_hook)
    if known is not None:
        return known
    matched = _SELECTED.match(text)
    if matched is None:
        raise UnknownSite(
            f"{text!r} is not a site; write for example 20, resid_post.20, z.9[6] or model.layers.20.mlp."
        )
    place, selected = matched["place"].strip(), matched["selector"]
    selector = parse_selector(selected) if selected else None
    site = _from_other_tool(place, of_hook) or _from_place(place)
    return site if selector is None else msgspec.structs.replace(site, selector=selector)


def parse_trained(text: str, of_hook: OfHook = lambda hook, site: site) -> Site:
    """Return the site whose value makes the one that a module was trained to read; `of_hook` is as above."""
    block = _BLOCK.match(text.strip())
    point = _READ.get(block["hook"]) if block else None
    return parse_site(text, of_hook) if point is None or block is None else Site(point=point, layer=int(block["layer"]))


def parse_every_layer(text: str) -> Site | None:
    """Return the site of layer 0 where the text spells a point of every layer, such as `resid_post.*` or `z.*[6]`."""
    matched = _EVERY_LAYER.match(text.strip())
    if matched is None or matched["point"] not in LAYER_POINTS:
        return None
    return parse_site(f"{matched['point']}.0{matched['selector'] or ''}")


def spell_every_layer(site: Site) -> str:
    """Spell the point and selector of a site at every layer: `resid_post.*`, `z.*[6]`."""
    return str(msgspec.structs.replace(site, layer=0)).replace(".0", ".*", 1)


def _from_place(place: str) -> Site:
    if place.isdigit():
        return Site(point="resid_post", layer=int(place))
    if place in MODEL_POINTS:
        return Site(point=place)
    if place in LAYER_POINTS:
        raise UnknownSite(f"{place!r} needs a layer: write {place}.0, {place}.1, ...")
    numbered = _POINT_LAYER.match(place)
    if numbered:
        return Site(point=numbered["point"], layer=int(numbered["layer"]))
    if not _MODULE_PATH.match(place):
        raise UnknownSite(
            f"{place!r} is not a site; write for example 20, resid_post.20, z.9[6] or model.layers.20.mlp."
        )
    path, _, end = place.rpartition(".")
    if path and end in ("input", "output"):
        return Site(point=end, path=path)
    return Site(point="output", path=place)


def _from_other_tool(text: str, of_hook: OfHook) -> Site | None:
    block = _BLOCK.match(text)
    hook = block["hook"] if block else text
    if hook in _NO_POINT:
        layer = block["layer"] if block else "N"
        raise UnknownSite(f"{text} of TransformerLens {_NO_POINT[hook].replace('.N', f'.{layer}')}.")
    if block and hook in _TRANSFORMER_LENS:
        return of_hook(hook, Site(point=_TRANSFORMER_LENS[hook], layer=int(block["layer"])))
    if text in _TRANSFORMER_LENS_MODEL:
        return of_hook(text, Site(point=_TRANSFORMER_LENS_MODEL[text]))
    numbered = _NNTERP_LAYER.match(text)
    if numbered and numbered["name"] in _NNTERP:
        return of_hook(numbered["name"], Site(point=_NNTERP[numbered["name"]], layer=int(numbered["layer"])))
    if text in _NNTERP_MODEL:
        return Site(point=_NNTERP_MODEL[text])
    return None
