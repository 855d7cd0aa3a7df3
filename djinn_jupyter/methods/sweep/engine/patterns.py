"""The spelling of a sweep's site: a site, a point of all layers, and stars for the axes swept."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.sweep.request import Axis
from djinn_jupyter.wire.sites import LAYER_POINTS, Site, parse_selector, spell_selector

_PATTERN: Final = re.compile(
    r"^(?P<point>[a-z_][a-z0-9_]*|\*)(?:\.(?P<layer>\d+|\*))?(?:\[(?P<units>\*|[-\d:, ]+)\])?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePattern:
    """`point` and `layer` of None are an axis of the sweep, as are units that are `starred`; `units` are those edited
    together, None for all."""

    point: str | None
    layer: int | None
    units: tuple[int, ...] | None = None
    starred: bool = False

    @classmethod
    def parse(cls, spelling: str, site_of: Callable[[str], Site]) -> SitePattern:
        """Return the pattern of `z`, `z.*`, `z.5[*]`, `*.5`, or of any spelling of a site in a model. Raises
        UnknownSite."""
        matched = _PATTERN.match(spelling.strip())
        own = matched is not None and matched["point"] not in (*LAYER_POINTS, "*")
        if matched is None or (own and not (matched["layer"] or "").isdecimal()):
            site = site_of(spelling)
            if site.path is not None or site.point not in LAYER_POINTS:
                raise no_place_of_a_sweep(spelling)
            return cls(point=site.point, layer=site.layer, units=site.selector)
        units = matched["units"]
        return cls(
            point=None if matched["point"] == "*" else matched["point"],
            layer=None if matched["layer"] in (None, "*") else int(matched["layer"]),
            units=None if units in (None, "*") else parse_selector(units),
            starred=units == "*",
        )

    @property
    def is_added(self) -> bool:
        """True where its point can only be that of an added module."""
        return self.point is not None and self.point not in LAYER_POINTS

    def require_axes(self, over: Sequence[Axis]) -> None:
        """Raise UsageError unless `over` names what is swept, and nothing that the site fixes."""
        if (self.layer is None) != ("layer" in over):
            advice = "leave the layer out" if self.layer is not None else f"name one, as in {self.point or '*'}.4"
            raise UsageError(f"The layer is either an axis of the sweep or named by the site: {advice}.")
        if (self.point is None) != ("point" in over):
            advice = "write * for it, as in *.4" if self.point is not None else "add point to the axes"
            raise UsageError(f"The point is either an axis of the sweep or named by the site: {advice}.")
        if self.starred and not {"head", "neuron"} & set(over):
            raise UsageError("[*] is an axis of the sweep: add head, or neuron for a site without heads.")
        if self.point is None and self.units is not None:
            raise UsageError("Points differ in their heads and features; leave the selector of * out.")

    def at(self, point: str, layer: int) -> Site:
        return Site(point=point, layer=layer, selector=self.units)

    def __str__(self) -> str:
        units = "*" if self.starred else None if self.units is None else spell_selector(self.units)
        place = self.point or "*"
        place += "" if self.layer is None else f".{self.layer}"
        return place if units is None else f"{place}{'' if self.layer is not None else '.*'}[{units}]"


def no_place_of_a_sweep(spelling: str) -> UnknownSite:
    near = get_close_matches(spelling, LAYER_POINTS, n=1)
    return UnknownSite(
        f"A sweep is of a point of the layers: {', '.join(LAYER_POINTS)}, or of an added module; {spelling!r} is none."
        + (f" Did you mean {near[0]!r}?" if near else "")
    )
