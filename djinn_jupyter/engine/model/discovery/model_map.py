"""The structure of a model, found by probes, never by names: its layers, the values between them, every point's tap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from posixpath import commonpath
from typing import Final

import msgspec
from torch import Tensor, nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.discovery.discovery import Discovery
from djinn_jupyter.engine.model.discovery.layer_list import Stack
from djinn_jupyter.engine.model.discovery.matrices import FoundMatrices, Matrix, PositionTable
from djinn_jupyter.engine.model.discovery.modules import ModelModules
from djinn_jupyter.engine.model.discovery.points import (
    COMPRESSED,
    NO_OUTPUT_MAP,
    PARTLY_SHARED,
    REPEATED,
    added_as_it_is,
)
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import ModelRefused, UnknownSite
from djinn_jupyter.wire.nouns import ModuleDescription, PointDescription
from djinn_jupyter.wire.sites import LAYER_POINTS, MODEL_POINTS, POINTS, Site, parse_site, parse_trained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anatomy(Stack):
    """One model's layers and points.

    `taps` holds the tap of each point by (point, layer), layer None for those of the whole model; a string there is the
    reason for an absence. `cache_layers` are the cache's layer numbers that each layer updates. `mappings` are the
    keyword arguments with which layers share mutable mappings, `handed` the tensors that one layer returns for the next
    besides the hidden state. `matrices` are each layer's, `groups` the value that each of its heads reads, `means`
    whether the heads write means of these, `positions` the table that is added to the embeddings. `changed_embedding`:
    the first layer's input is neither the embedding nor its sum with `positions`. `changed_head` is the path of the
    head where the logits are not its output.
    """

    hidden_size: int
    cache_layers: tuple[tuple[int, ...], ...]
    taps: dict[tuple[str, int | None], Tap | str]
    modules_found: ModelModules
    matrices: tuple[FoundMatrices, ...]
    groups: tuple[tuple[int, ...] | str, ...]
    means: tuple[bool, ...]
    positions: PositionTable | str
    changed_embedding: bool
    changed_head: str | None

    @property
    def modules(self) -> tuple[ModuleDescription, ...]:
        return self.modules_found.described

    def by_line(self, hidden: Tensor) -> Tensor:
        """Return a hidden state between layers as [B, T, D], or [B, T, S, D] where there are several streams."""
        return self._residual.by_line(hidden)

    def of_lines(self, rows_BTD: Tensor) -> Tensor:
        """Return such rows in the shape in which layers take their hidden state."""
        return self._residual.of_lines(rows_BTD)

    @property
    def _residual(self) -> PositionLayout:
        found = self.taps["resid_pre", 0]
        assert isinstance(found, Tap) and isinstance(found.layout, PositionLayout)
        return found.layout

    def cache_layers_of(self, layer: int) -> tuple[int, ...]:
        return self.cache_layers[layer]

    def resolve(self, site: Site) -> Tap:
        """Return the tap of a site. UnknownSite names an alternative, or the reason for its absence."""
        tap = self.modules_found.tap(site) if site.path is not None else self._point(site)
        check_selector(site, tap)
        return replace(tap, site=site)

    def points(self) -> tuple[PointDescription, ...]:
        return tuple(self._describe(point) for point in POINTS)

    def _point(self, site: Site) -> Tap:
        if site.point not in POINTS and site.layer is not None:  # a module of that path, such as h.4
            return self.modules_found.tap(Site(point="output", path=str(site.whole())))
        if site.point not in POINTS:
            near = get_close_matches(site.point, POINTS, n=1)
            raise UnknownSite(f"{site.point!r} is no point{f'; did you mean {near[0]!r}?' if near else '.'}")
        if site.point in LAYER_POINTS and (site.layer is None or not 0 <= site.layer < len(self.layers)):
            raise UnknownSite(f"There is no {site}: this model has layers 0..{len(self.layers) - 1}.")
        found = self.taps[site.point, site.layer if site.point in LAYER_POINTS else None]
        if isinstance(found, str):
            raise UnknownSite(f"There is no {site.whole()} here: {found}.{self._elsewhere(site)}")
        return found

    def _elsewhere(self, site: Site) -> str:
        """Return a sentence naming the nearest layer that has the point."""
        has = [layer for (point, layer), tap in self.taps.items() if point == site.point and not isinstance(tap, str)]
        if site.layer is None or not has:
            return ""
        nearest = min((layer for layer in has if layer is not None), key=lambda layer: abs(layer - (site.layer or 0)))
        return f" Nearest: {site.point}.{nearest}."

    def _describe(self, point: str) -> PointDescription:
        layers = range(len(self.layers)) if point in LAYER_POINTS else [None]
        found = {layer: self.taps[point, layer] for layer in layers}
        taps = {layer: tap for layer, tap in found.items() if isinstance(tap, Tap)}
        reasons = dict.fromkeys(tap for tap in found.values() if isinstance(tap, str))
        first = next(iter(taps.values()), None)
        return PointDescription(
            point=point,
            layers=None if point in MODEL_POINTS else tuple(layer for layer in taps if layer is not None),
            shape=first.axes if first else "",
            heads=first.heads if first else None,
            features=first.width if first else None,
            editable=first.editable if first else False,
            absent="; ".join(reasons) or None,
            module=self._module_of(list(taps.values())),
        )

    def _module_of(self, taps: Sequence[Tap]) -> str | None:
        paths = {self.modules_found.below_layer(tap.module) for tap in taps if tap.module is not None}
        return next(iter(paths)) or None if len(paths) == 1 else None


def discover(model: PreTrainedModel, held: Sequence[int] = ()) -> Anatomy:
    """Probe a model that has no gates yet. ModelRefused has the reason why a model cannot be stopped and resumed
    exactly.

    `held` are the nonempty layers of the cache: exactly one decoder layer must fill each.
    """
    learned = Discovery(model)
    _check_cache(type(model).__name__, held, learned.cache_layers())
    boundaries = learned.boundaries()
    return Anatomy(
        **{field.name: getattr(learned.stack, field.name) for field in fields(Stack)},
        hidden_size=boundaries[0].width or 0,
        cache_layers=learned.cache_layers(),
        taps=learned.taps(boundaries),
        modules_found=learned.modules(boundaries),
        matrices=tuple(learned.matrices),
        groups=tuple(groups for groups, _ in learned.groups),
        means=tuple(are_means for _, are_means in learned.groups),
        positions=learned.positions,
        changed_embedding=learned.changed_embedding,
        changed_head=learned.changed_head,
    )


def _check_cache(name: str, held: Sequence[int], filled: tuple[tuple[int, ...], ...]) -> None:
    for layer in held:
        fillers = [index for index, layers in enumerate(filled) if layer in layers]
        if len(fillers) != 1:
            raise ModelRefused.inexact(
                name, f"{len(fillers)} of its decoder layers fill layer {layer} of its cache, and it has to be one"
            )


def check_selector(site: Site, tap: Tap) -> None:
    """Raise UnknownSite for heads or features that the tap does not have."""
    units, size = ("heads", tap.heads) if tap.heads is not None else ("features", tap.width)
    if site.selector is None or size is None:
        return
    beyond = [index for index in site.selector if not 0 <= index < size]
    if beyond:
        raise UnknownSite(f"There is no {site}: this site has {size} {units}: 0..{size - 1}.")


# Sites by the names of other tools: the point with the value of a hook of TransformerLens or a name of nnterp in this
# model, or the reason for its absence. All spellings of a site that reach the engine are read here.

ADDED: Final = ("hook_attn_out", "hook_mlp_out")
PROJECTED: Final = ("attn.hook_q", "attn.hook_k", "attn.hook_v")
GIVEN: Final = {"attn_out": "attn_in", "mlp_out": "mlp_in"}
LATENT: Final = {
    "q": "is behind the rotary embedding where attention is latent: write q_rot.{n} for that, or q.{n} before it",
    "q_rot": "is the rotated part alone where attention is latent: write q_rot.{n} for the whole query",
    "k_rot": "is the rotated part alone where attention is latent: write k_rot.{n} for the whole keys",
}


def site_of(spelling: str, anatomy: Anatomy) -> Site:
    """Return the site that a text spells in this model. Raises UnknownSite, also for a hook of TransformerLens whose
    value none of its points has."""
    return parse_site(spelling, partial(_of_hook, anatomy))


def trained_at(spelling: str, anatomy: Anatomy) -> Site:
    """Return the site whose value makes the one that a module was trained to read. Raises UnknownSite."""
    return parse_trained(spelling, partial(_of_hook, anatomy))


def _of_hook(anatomy: Anatomy, hook: str, site: Site) -> Site:
    tap = anatomy.taps.get((site.point, site.layer))
    if not isinstance(tap, Tap):
        return site
    if hook in ADDED:
        return _added(anatomy, hook, site)
    why_not = _why_not(anatomy, hook, tap)
    if why_not is not None:
        raise UnknownSite(f"{_named(hook, site)} {why_not}.")
    return site


def _named(hook: str, site: Site) -> str:
    if "hook_" not in hook:
        return f"{hook}[{site.layer}] of nnterp"
    return f"{hook if site.layer is None else f'blocks.{site.layer}.{hook}'} of TransformerLens"


def _why_not(anatomy: Anatomy, hook: str, tap: Tap) -> str | None:
    """Return why the value of a hook differs from its point's here and what to write, None where it does not."""
    point, site = tap.site.point, tap.site
    if point == "embed" and anatomy.changed_embedding:
        return (
            "is by version and family the embedding or what this model makes of it, as by a factor or a norm: write "
            "embed for what it returns, or resid_pre.0 for what the first layer is given"
        )
    if point == "logits" and anatomy.changed_head is not None:
        return (
            "is what the head returns, and this model changes that, as by a soft-cap: write logits for what it makes "
            f"of it, or {anatomy.changed_head} for what the head returns"
        )
    if point in LATENT and anatomy.taps["k", site.layer] in (COMPRESSED, PARTLY_SHARED):
        return LATENT[point].format(n=site.layer)
    if hook in PROJECTED:
        return _normed(anatomy, tap)
    if point in ("q_rot", "k_rot") and _rotated_before(anatomy, site):
        return f"is before a norm of this model, and {site} is behind it: write {site} for that"
    if point in ("attn_scores", "pattern") and tap.axes != "T H K":
        return f"has a column for each position, and {site} also that of a sink: write {site} for all of them"
    added = anatomy.taps.get((f"{point}_post", site.layer)) == added_as_it_is(point)
    if point == "attn_out" and anatomy.taps["z", site.layer] == NO_OUTPUT_MAP and not added:
        return f"is behind the map of the heads, and {site} is before it: write {site} for the heads side by side"
    return _summed(anatomy, tap) if point in GIVEN else None


def _added(anatomy: Anatomy, hook: str, site: Site) -> Site:
    """Return the point of a block's addition to the residual."""
    post = msgspec.structs.replace(site, point=f"{site.point}_post")
    found = anatomy.taps[post.point, post.layer]
    if isinstance(found, str) and found != added_as_it_is(site.point):
        raise UnknownSite(
            f"{_named(hook, site)} is what is added to the residual, and no point is that in this model ({found}): "
            f"write {site} for what the block returns."
        )
    return post if isinstance(found, Tap) else site


def _normed(anatomy: Anatomy, tap: Tap) -> str | None:
    """Return why queries, keys or values after a norm are not those of a hook."""
    matrix, site = anatomy.matrices[tap.stage][f"W_{tap.site.point.upper()}"], tap.site
    if not matrix.normed if isinstance(matrix, Matrix) else _has_map(tap.module):
        return None
    reason = f"is before a norm of this model, and {site} is behind it: write {site} for that"
    if not isinstance(matrix, Matrix):
        return reason
    path = anatomy.modules_found.path_of(matrix.module)
    return f"{reason}, or {path} for what {'the map returns' if matrix.rotated else 'the norm is given'}"


def _rotated_before(anatomy: Anatomy, site: Site) -> bool:
    """Return whether the rotary embedding precedes the norm of queries or keys."""
    if anatomy.taps[site.point[0], site.layer] == REPEATED:
        return True
    matrix = anatomy.matrices[site.layer or 0][f"W_{site.point[0].upper()}"]
    return isinstance(matrix, Matrix) and matrix.rotated


def _summed(anatomy: Anatomy, tap: Tap) -> str | None:
    """Return why the addition of attention or the MLP is not its module's output: that includes the residual."""
    given, path_of = anatomy.taps[GIVEN[tap.site.point], tap.site.layer], anatomy.modules_found.path_of
    if not isinstance(given, Tap) or given.module is None or tap.module is None:
        return None
    made, layer = path_of(tap.module), path_of(anatomy.layers[tap.stage])
    block = commonpath((path_of(given.module).replace(".", "/"), made.replace(".", "/"))).replace("/", ".")
    if block in (made, layer):
        return None
    return (
        f"has the residual in it, for the module of this model adds that itself: write {tap.site} for what is added, "
        f"or {block} for the sum"
    )


def _has_map(module: nn.Module | None) -> bool:
    """Return whether a module is or has a linear map, unlike a norm."""
    return module is not None and any(isinstance(one, nn.Linear) for one in module.modules())
