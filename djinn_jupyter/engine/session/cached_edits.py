"""Edits of keys and values that are committed: made in a fork, whose pages alone have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.engine.memory.kv import committed_rows
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import LayerGeometry
from djinn_jupyter.engine.session.pass_log import CachedEdit
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.edits import Edit, PatchFrom
from djinn_jupyter.wire.sites import Site

KEYS, VALUES = "k_rot", "v"


@torch.inference_mode()
def edit_cached(
    runtime: Runtime, session: Session, edit: Edit, site: Site, positions: Sequence[int] | None, words: str | None
) -> CachedEdit:
    """Edit committed keys (`k_rot.N`) or values (`v.N`) of a session and note that in its pass log. Raises InvalidEdit,
    UnknownSite and SlabFull; nothing has changed then."""
    layer = _cache_layer(runtime, session.frame, site)
    available = committed_rows.readable(session.cache, layer)
    chosen = _chosen(positions, available)
    keys = site.point == KEYS
    before = committed_rows.read_rows(session.cache, layer, chosen, keys=keys)
    if isinstance(edit, PatchFrom):
        raise InvalidEdit("patch_from takes the value of a stop, and these rows are of none; use set with an array.")
    edit_kinds.check(edit, before.shape[-1])
    part = edits.take(before, None, site.selector)
    after = edit_kinds.compute(part, edit, None)
    if not bool(torch.isfinite(after).all()):
        raise InvalidEdit("The edit makes NaN or infinity of the keys or values; there is no fork.")
    made = CachedEdit(
        at=session.committed,
        site=site,
        positions=chosen,
        rows_nHD=edits.put(before, after, None, site.selector).to("cpu"),
        what=edits.spell_at(words or edit_kinds.spell(edit), site, chosen) + ", in the cache",
        size=float(edits.sizes(part, after).relative),
    )
    put_back(runtime, session.cache, made)
    session.pass_log.note(made)
    return made


def put_back(runtime: Runtime, cache: PagedCache, made: CachedEdit) -> None:
    """Put the edited rows into a cache, those that a window has not given up. Raises SlabFull."""
    assert made.site.layer is not None
    (layer,) = runtime.forward.anatomy.cache_layers_of(made.site.layer)
    here = committed_rows.readable(cache, layer)
    kept = [index for index, position in enumerate(made.positions) if position in here]
    positions = [made.positions[index] for index in kept]
    committed_rows.replace_rows(cache, layer, positions, made.rows_nHD[kept], keys=made.site.point == KEYS)


def _cache_layer(runtime: Runtime, frame: Frame | None, site: Site) -> int:
    """Return the cache layer of a site. Raises InvalidEdit where it is not of the cache, or where the stopped pass has
    read it already."""
    if site.point not in (KEYS, VALUES) or site.layer is None:
        raise InvalidEdit(
            f"{site} is not in the cache: it keeps keys, after the rotary embedding, and values. Write "
            f"{KEYS}.{site.layer or 0} or {VALUES}.{site.layer or 0}, with heads in brackets."
        )
    runtime.resolve(site)
    layers = runtime.forward.anatomy.cache_layers_of(site.layer)
    if len(layers) != 1:
        raise InvalidEdit(f"Layer {site.layer} keeps no keys and values of its own.")
    if frame is not None and frame.tap is not None:
        first = frame.tap.stage + 1 if frame.inside else frame.boundary
        if site.layer < first:
            raise InvalidEdit(
                f"Layer {site.layer} has run in the stopped pass, with the keys and values as they were. Go back to "
                "before it, or fork when no pass is stopped."
            )
    return layers[0]


def _chosen(positions: Sequence[int] | None, available: range) -> tuple[int, ...]:
    if not available:
        raise InvalidEdit("No position is committed yet, so the cache holds nothing to edit; run a prompt first.")
    if positions is None:
        return tuple(available)
    absolute = [available.stop + one if one < 0 else one for one in positions]
    strange = next((one for one in absolute if one not in available), None)
    if strange is not None:
        raise InvalidEdit(
            f"Position {strange} has no keys and values in this layer's cache, which holds positions "
            f"{available.start} to {available.stop - 1}."
        )
    return tuple(dict.fromkeys(absolute))


def fits_layer(geometry: LayerGeometry, site: Site, rows_nHD: Tensor) -> bool:
    """True where rows have the shape and dtype of the site's keys or values in a cache layer."""
    width = geometry.key_dim if site.point == KEYS else geometry.value_dim
    return rows_nHD.shape[1:] == (geometry.kv_heads, width) and rows_nHD.dtype == geometry.dtype
