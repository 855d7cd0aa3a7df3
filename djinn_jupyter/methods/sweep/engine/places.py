"""The places of a sweep: its axes, and the spots that each cell edits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from djinn_jupyter.engine.model.hooks.feature_layout import FeatureLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.sweep.engine.alignment import Alignment, SweptLine
from djinn_jupyter.methods.sweep.engine.axes import AXES, Elements, Part, SweptSite, divided, named
from djinn_jupyter.methods.sweep.engine.patterns import SitePattern, no_place_of_a_sweep
from djinn_jupyter.methods.sweep.request import MOST_CELLS, Axis, Place
from djinn_jupyter.wire.sites import LAYER_POINTS, Site

ALL = Alignment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One place of an edit. `rows` and `units` (heads or neurons) of None are all; `source_rows` are those of the clean
    line that correspond to `rows`."""

    tap: Tap
    rows: tuple[int, ...] | None
    source_rows: tuple[int, ...] | None
    units: tuple[int, ...] | None
    coef: float | None = None

    @property
    def at(self) -> list[int] | None:
        return None if self.rows is None else list(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The spots that are edited together, in the order in which a pass meets their taps. `number` counts the cells row
    by row."""

    number: int
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPlaces:
    """`axes` has the places along each axis of one cell, and `elements` what each has of the part that the axis
    divides. A cell edits as many places of an axis together as `windows` says, fewer at its end. With `in_pairs`, each
    cell is a pair of cells, and the grid has every axis twice."""

    site: str
    axes: dict[Axis, tuple[Place, ...]]
    elements: dict[Axis, tuple[Elements, ...]]
    taps: dict[tuple[str, int], Tap]
    units: tuple[int, ...] | None
    alignment: Alignment
    windows: Mapping[Axis, int]
    in_pairs: bool = False

    @property
    def over(self) -> tuple[Axis, ...]:
        return tuple(self.axes) * (2 if self.in_pairs else 1)

    @property
    def along(self) -> tuple[tuple[Place, ...], ...]:
        """The places along each axis of the grid."""
        return tuple(self.axes.values()) * (2 if self.in_pairs else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.along))

    @property
    def parts(self) -> dict[Part, Axis]:
        """The parts of an edit that are divided, each with its axis."""
        return divided(tuple(self.axes))

    def edited(self, axis: Axis) -> list[Elements]:
        """Return the elements that a cell edits at each place of an axis, with those of the places in its window."""
        each, size = self.elements[axis], self.windows.get(axis, 1)
        return [tuple(itertools.chain(*each[number : number + size])) for number in range(len(each))]

    def cells(self) -> list[Cell]:
        """Return every cell, first those of a coarse grid, then those between; of a pair of cells, the place above the
        diagonal."""
        return sorted(self._cells(), key=lambda cell: (self._fineness(cell.number), cell.number))

    def _fineness(self, number: int) -> int:
        """Return how often the grid has to be halved until it has this cell."""
        fineness = 0
        for length in reversed(self.shape):
            number, at = divmod(number, length)
            halvings = 0 if at == 0 else (length - 1).bit_length() - (at & -at).bit_length() + 1
            fineness = max(fineness, halvings)
        return fineness

    def _cells(self) -> list[Cell]:
        each = list(self._spots())
        if not self.in_pairs:
            return [Cell(number=number, spots=spots) for number, spots in enumerate(each)]
        return [
            Cell(number=a * len(each) + b, spots=_in_order({*each[a], *each[b]}, self.taps))
            for a, b in itertools.combinations_with_replacement(range(len(each)), 2)
        ]

    def numbers_of(self, number: int) -> tuple[int, ...]:
        """Return a cell's number, and that of its place on the other side of the diagonal."""
        if not self.in_pairs:
            return (number,)
        a, b = divmod(number, math.isqrt(math.prod(self.shape)))
        return (number,) if a == b else (number, b * math.isqrt(math.prod(self.shape)) + a)

    def _spots(self) -> Iterator[tuple[Spot, ...]]:
        """Yield the spots of every single cell, row by row."""
        parts = [AXES[axis].part for axis in self.axes]
        for elements in itertools.product(*map(self.edited, self.axes)):
            yield tuple(self._spots_of(dict(zip(parts, elements, strict=True))))

    def _spots_of(self, parts: Mapping[Part, Elements]) -> Iterator[Spot]:
        rows, units = parts.get("row", self.alignment.rows), parts.get("unit", self.units)
        (coef,) = parts.get("coef", (None,))
        source_rows = self.alignment.of_clean(rows)
        for (point, layer), tap in self.taps.items():
            if layer in parts.get("layer", (layer,)) and point in parts.get("point", (point,)):
                yield Spot(tap=tap, rows=rows, source_rows=source_rows, units=units, coef=coef)


def places_of(
    runtime: Runtime,
    spelling: str,
    over: Sequence[Axis],
    line: SweptLine,
    *,
    alignment: Alignment = ALL,
    coefs: tuple[float, ...] = (),
    windows: Mapping[Axis, int] | None = None,
    in_pairs: bool = False,
) -> SweptPlaces:
    """Return the places of a site's sweep over a line. Raises UnknownSite and UsageError."""
    if len(set(over)) < len(over):
        raise UsageError(f"A sweep goes over each axis once; {', '.join(over)} names one twice.")
    if ("coef" in over) != bool(coefs):
        raise UsageError("A sweep over coef needs the coefficients, as coefs=(0, 0.5, 1), and no other sweep does.")
    pattern = SitePattern.parse(spelling, runtime.site)
    pattern.require_axes(over)
    divided(over)
    taps = _taps(runtime, pattern)
    rows = tuple(range(len(line.tokens))) if alignment.rows is None else alignment.rows
    swept = SweptSite(pattern=pattern, taps=taps, line=line, rows=rows, coefs=coefs)
    axes = {axis: tuple(AXES[axis].places(swept)) for axis in over}
    places = SweptPlaces(
        site=str(pattern),
        axes=axes,
        elements={axis: tuple(AXES[axis].elements(swept, place) for place in along) for axis, along in axes.items()},
        taps=taps,
        units=pattern.units,
        alignment=alignment,
        windows=_checked_windows(windows or {}, over),
        in_pairs=in_pairs,
    )
    _require_possible(places)
    return places


def _taps(runtime: Runtime, pattern: SitePattern) -> dict[tuple[str, int], Tap]:
    """Return the taps of a pattern in the order of a pass, by point and layer."""
    layers = range(runtime.forward.layers) if pattern.layer is None else [pattern.layer]
    if pattern.is_added:
        return {(str(pattern.point), layers[0]): _added(runtime, pattern, layers[0])}
    if pattern.point is not None:
        return {(pattern.point, layer): _editable(runtime, pattern.at(pattern.point, layer)) for layer in layers}
    points = [point for point in LAYER_POINTS if all(_is_editable(runtime, point, layer) for layer in layers)]
    return {(point, n): runtime.resolve(Site(point=point, layer=n)) for n in layers for point in points}


def _added(runtime: Runtime, pattern: SitePattern, layer: int) -> Tap:
    """Return the tap of an added module, of one layer: edits at several are not made in each other's features."""
    tap = _editable(runtime, pattern.at(str(pattern.point), layer))
    if not isinstance(tap.layout, FeatureLayout):
        raise no_place_of_a_sweep(str(pattern))
    return tap


def _editable(runtime: Runtime, site: Site) -> Tap:
    tap = runtime.resolve(site)
    if not tap.editable:
        raise UnknownSite(f"{tap.site.whole()} cannot be edited here: {tap.reason or 'it is read only'}.")
    return tap


def _is_editable(runtime: Runtime, point: str, layer: int) -> bool:
    try:
        return runtime.resolve(Site(point=point, layer=layer)).editable
    except UnknownSite:
        return False


def _checked_windows(windows: Mapping[Axis, int], over: Sequence[Axis]) -> Mapping[Axis, int]:
    for axis, size in windows.items():
        if not AXES[axis].windowed or axis not in over:
            windowed = named([name for name, of in AXES.items() if of.windowed], "or")
            raise UsageError(f"A window is of {windowed} that the sweep goes over; {axis} is none of them.")
        if size < 1:
            raise UsageError(f"A window has at least one place; it cannot have {size}.")
    return windows


def _require_possible(places: SweptPlaces) -> None:
    cells = math.prod(places.shape)
    if cells > MOST_CELLS:
        raise UsageError(f"A sweep has at most {MOST_CELLS:,} cells; this one has {cells:,}.")
    if places.in_pairs and not all(AXES[axis].paired for axis in places.axes):
        paired = named([name for name, of in AXES.items() if of.paired], "and")
        others = " and ".join(sorted(name for name, of in AXES.items() if not of.paired))
        raise UsageError(f"Pairs of cells are of {paired}; leave {others} out.")
    if places.in_pairs and any(size > 1 for size in places.windows.values()):
        raise UsageError("A sweep is of windows or of pairs of cells; leave one of them out.")


def _in_order(spots: set[Spot], taps: Mapping[tuple[str, int], Tap]) -> tuple[Spot, ...]:
    order = {id(tap): number for number, tap in enumerate(taps.values())}
    return tuple(sorted(spots, key=lambda spot: (order[id(spot.tap)], spot.rows or (), spot.units or ())))
