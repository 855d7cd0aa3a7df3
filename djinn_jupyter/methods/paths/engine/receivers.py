"""The receivers of a path: sites of one pass that read what a sender wrote, while everything else is unchanged.

Owns which sites can receive, what is frozen between a sender and them, and which senders reach which. Runs no pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.controller import Unmarked
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.wire.sites import LAYER_POINTS, MLP_POINTS, Site

BLOCKS: Final = ("attn_out", "mlp_out")
WRITTEN: Final = {
    "attn_out": "attn_in, q, k or v",
    "attn_out_post": "attn_in, q, k or v",
    "mlp_out": "mlp_in",
    "mlp_out_post": "mlp_in",
}
ORDER: Final = {point: number for number, point in enumerate(LAYER_POINTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """`heads` None means all, or the whole value where it has none."""

    tap: Tap
    heads: tuple[int, ...] | None

    @property
    def boundary(self) -> int:
        """The first boundary from which the pass can differ."""
        return self.tap.stage if self.tap.boundary is None else self.tap.boundary

    @property
    def last_layer(self) -> int:
        """The last layer that has to run for its value."""
        return self.tap.stage if self.tap.boundary is None else self.tap.boundary - 1

    def put(self, raw: Tensor, met: Tensor) -> Tensor:
        """Return `raw` with the part of the raw tensor `met` that this receiver reads."""
        return self.tap.write(raw, self.put_value(self.tap.read(raw), met))

    def put_value(self, value: Tensor, met: Tensor) -> Tensor:
        """Return a value with the part of the raw tensor `met` that this receiver reads."""
        return edits.put(value, edits.take(self.tap.read(met), None, self.heads), None, self.heads)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Received(Unmarked):
    """Puts a receiver's recorded value in place during a pass, beside the pass's own values."""

    receiver: Receiver
    met: Tensor

    @property
    def taps(self) -> tuple[Tap, ...]:
        return (self.receiver.tap,)

    @property
    def places(self) -> tuple[Site, ...]:
        return (self.receiver.tap.site,)

    def apply(self, site_value: SiteValue, counted: bool) -> tuple[Tensor, Change]:
        return self.receiver.put_value(site_value.value, self.met), Change(what="received", size=math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivers:
    """`each` by their order in a pass; `blocks` are the outputs of attention and MLP, by layer, where they may be
    frozen."""

    each: tuple[Receiver, ...]
    blocks: dict[int, tuple[Tap, Tap]]

    @classmethod
    def of(cls, runtime: Runtime, spellings: Sequence[str], senders: Iterable[Tap]) -> Receivers:
        """Return the receivers of paths from `senders`. Raises UnknownSite and UsageError."""
        senders = tuple(senders)
        sites = _joined([_site(runtime, text) for text in spellings])
        each = [Receiver(tap=_resolved(runtime, site), heads=site.selector) for site in sites]
        each.sort(key=lambda one: place_of(one.tap))
        for one in each:
            if not any(reaches(sender, one) for sender in senders):
                first = min(senders, key=place_of)
                raise UsageError(
                    f"No path leads from {first.site} to {one.tap.site}: a receiver lies after its sender in a pass."
                )
        layers = range(min(sender.stage for sender in senders), max(one.last_layer for one in each) + 1)
        return cls(each=tuple(each), blocks={layer: _blocks(runtime, layer) for layer in layers})

    @property
    def taps(self) -> tuple[Tap, ...]:
        """The taps at which paths need values of the unedited sequence."""
        return (*(one.tap for one in self.each), *(tap for pair in self.blocks.values() for tap in pair))

    @property
    def first(self) -> int:
        """The first boundary from which a pass with received values can differ."""
        return min(one.boundary for one in self.each)

    @property
    def last_layer(self) -> int:
        return max(one.last_layer for one in self.each)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The receivers in their spelling, with their heads."""
        return tuple(Site(point=one.tap.site.point, layer=one.tap.site.layer, selector=one.heads) for one in self.each)

    def reached_from(self, sender: Tap) -> tuple[Receiver, ...]:
        return tuple(one for one in self.each if reaches(sender, one))

    def frozen_after(self, sender: Tap, layer: int) -> tuple[Tap, ...]:
        """Return the blocks of a layer that are frozen after a change at `sender`."""
        if layer not in self.blocks:
            return ()
        attention, mlp = self.blocks[layer]
        first = sender.stage if sender.boundary is None else sender.boundary
        if layer > first or (layer == first and sender.boundary is not None):
            return attention, mlp
        within_mlp = sender.site.point in MLP_POINTS
        return () if layer < first or within_mlp else (mlp,)


def place_of(tap: Tap) -> tuple[int, int]:
    """Return the place of a tap in a pass: its layer, then its point. The end of a layer is the beginning of the
    next."""
    if tap.boundary is not None:
        return tap.boundary, 0
    return tap.stage, ORDER[tap.site.point]


def reaches(sender: Tap, receiver: Receiver) -> bool:
    return place_of(sender) < place_of(receiver.tap)


def _site(runtime: Runtime, text: str) -> Site:
    if text.strip() == "logits":  # the input of the final norm and the head
        return Site(point="resid_post", layer=runtime.forward.layers - 1)
    site = runtime.site(text)
    if site.path is not None or site.point not in LAYER_POINTS:
        raise UnknownSite(
            f"A path ends at a point of a layer, as q.5[0], mlp_in.6 or resid_post.7, or at logits; {text!r} is none."
        )
    if site.point in WRITTEN:
        raise UnknownSite(f"{text!r} is what a block writes; a path ends at what one reads: {WRITTEN[site.point]}.")
    return site


def _joined(sites: Sequence[Site]) -> list[Site]:
    """Return one site for each place, with the heads of all that name it."""
    found: dict[Site, set[int] | None] = {}
    for site in sites:
        before = found.get(site.whole(), set())
        found[site.whole()] = None if site.selector is None or before is None else before | set(site.selector)
    return [
        Site(point=site.point, layer=site.layer, selector=None if heads is None else tuple(sorted(heads)))
        for site, heads in found.items()
    ]


def _resolved(runtime: Runtime, site: Site) -> Tap:
    tap = runtime.resolve(site)
    if not tap.editable:
        raise UnknownSite(f"{tap.site} cannot be edited here: {tap.reason or 'it is read only'}.")
    return tap


def _blocks(runtime: Runtime, layer: int) -> tuple[Tap, Tap]:
    try:
        attention, mlp = (_resolved(runtime, Site(point=point, layer=layer)) for point in BLOCKS)
    except UnknownSite as error:
        raise UnknownSite(f"A path freezes what lies between, and layer {layer} cannot be frozen: {error}") from None
    return attention, mlp
