"""Sites by the names of other tools: the point that has the value of a hook of TransformerLens in this model, or the
reason why none has it. Whatever reaches the engine as the spelling of a site is read here."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from torch import nn

from djinn_jupyter.engine.model.discovery.matrices import Matrix
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.discovery.point import added_as_it_is
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.sites import Site, parse_site, parse_trained

ADDED: Final = ("hook_attn_out", "hook_mlp_out")
PROJECTED: Final = ("attn.hook_q", "attn.hook_k", "attn.hook_v")


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
    if hook in PROJECTED:
        _require_projected(anatomy, hook, tap)
    if site.point == "embed" and anatomy.changed_embedding:
        raise UnknownSite(
            f"{hook} of TransformerLens is by version and family the embedding or what this model makes of it, as by a "
            "factor or a norm: write embed for what it returns, or resid_pre.0 for what the first layer is given."
        )
    if site.point == "logits" and anatomy.changed_head is not None:
        raise UnknownSite(
            f"{hook} of TransformerLens is what the head returns, and this model changes that, as by a soft-cap: write "
            f"logits for what it makes of it, or {anatomy.changed_head} for what the head returns."
        )
    return site


def _added(anatomy: Anatomy, hook: str, site: Site) -> Site:
    """Return the point of what a block adds to the residual."""
    post = msgspec.structs.replace(site, point=f"{site.point}_post")
    found = anatomy.taps[post.point, post.layer]
    if isinstance(found, str) and found != added_as_it_is(site.point):
        raise UnknownSite(
            f"blocks.{site.layer}.{hook} of TransformerLens is what is added to the residual, and no point is that in "
            f"this model ({found}): write {site} for what the block returns."
        )
    return post if isinstance(found, Tap) else site


def _require_projected(anatomy: Anatomy, hook: str, tap: Tap) -> None:
    """Raise UnknownSite for queries, keys or values that are behind a norm here."""
    matrix, site = anatomy.matrices[tap.stage][f"W_{tap.site.point.upper()}"], tap.site
    if not matrix.normed if isinstance(matrix, Matrix) else _has_map(tap.module):
        return
    given = anatomy.modules_found.path_of(matrix.module) if isinstance(matrix, Matrix) else None
    raise UnknownSite(
        f"blocks.{site.layer}.{hook} of TransformerLens is before a norm of this model, and {site} is behind it: "
        f"write {site} for that{'' if given is None else f', or {given} for what the norm is given'}."
    )


def _has_map(module: nn.Module | None) -> bool:
    """Return whether a module is or has a linear map, as no norm has."""
    return module is not None and any(isinstance(one, nn.Linear) for one in module.modules())
