"""Sites by the names of other tools: the point that has the value of a hook of TransformerLens or a name of nnterp in
this model, or the reason why none has it. Whatever reaches the engine as the spelling of a site is read here."""

from __future__ import annotations

from functools import partial
from posixpath import commonpath
from typing import Final

import msgspec
from torch import nn

from djinn_jupyter.engine.model.discovery.attention_points import COMPRESSED, NO_OUTPUT_MAP
from djinn_jupyter.engine.model.discovery.matrices import Matrix
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.discovery.point import added_as_it_is
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.sites import Site, parse_site, parse_trained

ADDED: Final = ("hook_attn_out", "hook_mlp_out")
PROJECTED: Final = ("attn.hook_q", "attn.hook_k", "attn.hook_v")
GIVEN: Final = {"attn_out": "attn_in", "mlp_out": "mlp_in"}
COMPRESSED_QUERIES: Final = {
    "q": "is behind the rotary embedding where the cache is compressed: write q_rot.{n} for that, or q.{n} before it",
    "q_rot": "is the rotated part alone where the cache is compressed: write q_rot.{n} for the whole query",
}


def site_of(spelling: str, anatomy: Anatomy) -> Site:
    """Return the site that a text spells in this model. Raises UnknownSite, also for a hook of TransformerLens whose
    value none of its points has."""
    return parse_site(spelling, partial(_of_hook, anatomy))


def trained_at(spelling: str, anatomy: Anatomy) -> Site:
    """Return the site from whose value that is made which a module was trained to read. Raises UnknownSite."""
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
    """Return why the value of a hook is not that of its point here and what to write, None where it is."""
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
    if point in ("q", "q_rot") and anatomy.taps["k", site.layer] == COMPRESSED:
        return COMPRESSED_QUERIES[point].format(n=site.layer)
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
    """Return the point of what a block adds to the residual."""
    post = msgspec.structs.replace(site, point=f"{site.point}_post")
    found = anatomy.taps[post.point, post.layer]
    if isinstance(found, str) and found != added_as_it_is(site.point):
        raise UnknownSite(
            f"{_named(hook, site)} is what is added to the residual, and no point is that in this model ({found}): "
            f"write {site} for what the block returns."
        )
    return post if isinstance(found, Tap) else site


def _normed(anatomy: Anatomy, tap: Tap) -> str | None:
    """Return why queries, keys or values that are behind a norm are not those of a hook."""
    matrix, site = anatomy.matrices[tap.stage][f"W_{tap.site.point.upper()}"], tap.site
    if not matrix.normed if isinstance(matrix, Matrix) else _has_map(tap.module):
        return None
    reason = f"is before a norm of this model, and {site} is behind it: write {site} for that"
    if not isinstance(matrix, Matrix):
        return reason
    path = anatomy.modules_found.path_of(matrix.module)
    return f"{reason}, or {path} for what {'the map returns' if matrix.rotated else 'the norm is given'}"


def _rotated_before(anatomy: Anatomy, site: Site) -> bool:
    """Return whether the rotary embedding stands before the norm of queries or keys."""
    matrix = anatomy.matrices[site.layer or 0][f"W_{site.point[0].upper()}"]
    return isinstance(matrix, Matrix) and matrix.rotated


def _summed(anatomy: Anatomy, tap: Tap) -> str | None:
    """Return why what attention or the MLP adds is not what its module returns: that has the residual in it."""
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
    """Return whether a module is or has a linear map, as no norm has."""
    return module is not None and any(isinstance(one, nn.Linear) for one in module.modules())
