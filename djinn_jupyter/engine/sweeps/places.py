"""The places of a sweep: its axes, and the tap, rows and heads of each cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.wire.sites import LAYER_POINTS, POINTS, Site, parse_site
from djinn_jupyter.wire.sweeps import Axis

LARGEST = 1_000_000  # cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`number` counts the cells row by row. `rows` and `heads` of None are all."""

    number: int
    layer: int
    rows: list[int] | None
    heads: tuple[int, ...] | None
    coef: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """`taps` are those of the swept layers. Every place has a size for each of `over`."""

    site: Site
    over: tuple[Axis, ...]
    taps: dict[int, Tap]
    positions: range
    heads: range
    selector: tuple[int, ...] | None
    coefs: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, runtime: Runtime, spelling: str, over: tuple[Axis, ...], length: int, coefs: tuple[float, ...] = ()
    ) -> Places:
        """Return the places of a site's sweep over a line of `length` tokens. Raises UnknownSite and UsageError."""
        if len(set(over)) < len(over):
            raise UsageError(f"A sweep goes over each axis once; {', '.join(over)} names one twice.")
        if ("coef" in over) != bool(coefs):
            raise UsageError("A sweep over coef needs the coefficients, as coefs=(0, 0.5, 1), and no other sweep does.")
        site = _point_or_site(spelling)
        taps = _taps(runtime, site, over, spelling)
        heads = {tap.heads for tap in taps.values()}
        if "head" in over and (len(heads) > 1 or None in heads or site.selector is not None):
            raise UsageError(
                f"A sweep over heads needs a site that has heads in every layer, as z has; {spelling} not."
            )
        places = cls(
            site=site,
            over=over,
            taps=taps,
            positions=range(length),
            heads=range((heads.pop() or 0) if "head" in over else 0),
            selector=site.selector,
            coefs=coefs,
        )
        if math.prod(places.shape) > LARGEST:
            raise UsageError(f"A sweep has at most {LARGEST:,} cells; this one has {math.prod(places.shape):,}.")
        return places

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(self.taps)

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = {
            "layer": len(self.taps),
            "position": len(self.positions),
            "head": len(self.heads),
            "coef": len(self.coefs),
        }
        return tuple(sizes[axis] for axis in self.over)

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, row by row."""
        axes = {"layer": self.layers, "position": self.positions, "head": self.heads, "coef": self.coefs}
        for number, place in enumerate(itertools.product(*(axes[axis] for axis in self.over))):
            at: dict[str, Any] = dict(zip(self.over, place, strict=True))
            yield Cell(
                number=number,
                layer=at.get("layer", self.layers[0]),
                rows=[at["position"]] if "position" in at else None,
                heads=(at["head"],) if "head" in at else self.selector,
                coef=at.get("coef"),
            )


def _point_or_site(spelling: str) -> Site:
    """Return a site, of a point alone or with `.*` without its layer."""
    point = spelling.strip().removesuffix(".*")
    return Site(point=point) if point in POINTS else parse_site(spelling)


def _taps(runtime: Runtime, site: Site, over: tuple[Axis, ...], spelling: str) -> dict[int, Tap]:
    if site.path is not None or site.point not in LAYER_POINTS:
        raise UnknownSite(f"A sweep is of a point of the layers: {', '.join(LAYER_POINTS)}; {spelling!r} is none.")
    if (site.layer is None) != ("layer" in over):
        advice = "leave the layer out" if site.layer is not None else f"name one, as in {site.point}.4"
        raise UsageError(f"The layer is either an axis of the sweep or named by the site: {advice}.")
    layers = range(runtime.forward.layers) if site.layer is None else [site.layer]
    taps = {layer: runtime.resolve(Site(point=site.point, layer=layer, selector=site.selector)) for layer in layers}
    for tap in taps.values():
        if not tap.editable:
            raise UnknownSite(f"{tap.site.whole()} cannot be edited here: {tap.reason or 'it is read only'}.")
    return taps
