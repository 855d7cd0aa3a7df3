"""The places of a sweep: its positions, the corresponding ones of the clean prompt, its site, its axes and its
cells."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Literal

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.sweep.request import MOST_CELLS, Axis, NamedPosition, Place
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout
from djinn_jupyter.wire.sites import LAYER_POINTS, Site, parse_selector, spell_selector

TOLD = 24


@dataclass(frozen=True, kw_only=True)
class SweptLine:
    """The tokens of a prompt, under its name in refusals."""

    name: str
    tokens: tuple[int, ...]
    tokenizer: TokenText

    def positions_of(self, named: NamedPosition) -> tuple[int, ...]:
        """Return the position with this number (negative ones count from the end), or of all tokens with this text,
        ignoring surrounding spaces where none matches exactly. Raises UsageError without a match."""
        length = len(self.tokens)
        if isinstance(named, int):
            if not -length <= named < length:
                raise UsageError(f"Position {named} is not in the {self.name}, which has {length} tokens.")
            return (named % length,)
        found = self._at_text.get(named) or self._at_bare_text.get(named.strip())
        if found is None:
            there = ", ".join(map(repr, self.texts[-TOLD:]))
            raise UsageError(f"No token of the {self.name} reads {named!r}. Its tokens are: {there}.")
        return found

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.tokenizer.text_of(token) for token in self.tokens)

    @cached_property
    def _at_text(self) -> dict[str, tuple[int, ...]]:
        return _positions_by(self.texts)

    @cached_property
    def _at_bare_text(self) -> dict[str, tuple[int, ...]]:
        return _positions_by(text.strip() for text in self.texts)


def _positions_by(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the positions of each text."""
    found: dict[str, list[int]] = defaultdict(list)
    for at, text in enumerate(texts):
        found[text].append(at)
    return {text: tuple(positions) for text, positions in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """`rows` are the edited positions of the corrupted prompt, None for all; `others` the corresponding ones of the
    clean prompt."""

    rows: tuple[int, ...] | None = None
    others: tuple[int, ...] | None = None

    def of_clean(self, rows: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the positions of the clean prompt that correspond to some of the corrupted prompt's."""
        if rows is None or self.rows is None or self.others is None:
            return rows
        corresponding = dict(zip(self.rows, self.others, strict=True))
        return tuple(corresponding[row] for row in rows)


def chosen_positions(line: SweptLine, named: Sequence[NamedPosition]) -> Alignment:
    """Return the named positions, each once, in order; all where none is named."""
    if not named:
        return Alignment()
    return Alignment(rows=tuple(sorted({at for one in dict.fromkeys(named) for at in line.positions_of(one)})))


def aligned(corrupted: SweptLine, clean: SweptLine, named: Sequence[tuple[NamedPosition, NamedPosition]]) -> Alignment:
    """Return the corresponding positions by these names, in the order of the corrupted prompt. Raises UsageError."""
    found: dict[int, int] = {}
    for one, other in dict.fromkeys(named):
        rows, others = corrupted.positions_of(one), clean.positions_of(other)
        if len(rows) != len(others):
            raise UsageError(
                f"{one!r} stands at {len(rows)} positions of the corrupted line, and {other!r} at {len(others)} of the "
                "clean one; name them by number."
            )
        for row, at in zip(rows, others, strict=True):
            if found.setdefault(row, at) != at:
                raise UsageError(f"Position {row} of the corrupted line is aligned with {found[row]} and with {at}.")
    rows = tuple(sorted(found))
    return Alignment(rows=rows, others=tuple(found[row] for row in rows))


# The spelling of a sweep's site: a site, a point of all layers, and stars for the axes swept.

_PATTERN: Final = re.compile(
    r"^(?P<point>[a-z_][a-z0-9_]*|\*)(?:\.(?P<layer>\d+|\*))?(?:\[(?P<units>\*|[-\d:, ]+)\])?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePattern:
    """`point` and `layer` of None are an axis of the sweep, as are `starred` units; `units` are those edited together,
    None for all."""

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
        """True where its point can only be an added module's."""
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


# The axes of sweeps. Each is declared once: the part of an edit that it divides, its places, and the elements of each.
# Cells, estimates and refusals read it here; its name is in `Axis`, for messages.

Part = Literal["point", "layer", "row", "unit", "coef"]  # of an edit: a unit is a head or a neuron
Elements = tuple[Any, ...]  # of a part: names of points, numbers of layers, rows and units, coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSite:
    """Values that an axis divides: the taps of a site, by point and layer, the rows of a line, and coefficients."""

    pattern: SitePattern
    taps: Mapping[tuple[str, int], Tap]
    line: SweptLine
    rows: tuple[int, ...]
    coefs: tuple[float, ...]

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point for point, _ in self.taps))

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(layer for _, layer in self.taps))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAxis:
    """An axis divides a `part` of an edit into `places`, each of which has some `elements` of it: by default one, which
    is its name. A cell of a `windowed` axis can take the places after its own too; pairs of cells are of axes that are
    `paired`."""

    part: Part
    places: Callable[[SweptSite], Sequence[Place]]
    elements: Callable[[SweptSite, Place], Elements] = lambda of, place: (place,)
    windowed: bool = False
    paired: bool = True


def _heads(of: SweptSite) -> Sequence[Place]:
    return _units(of, "heads", "heads in every layer, as z has", lambda tap: tap.heads)


def _neurons(of: SweptSite) -> Sequence[Place]:
    without = "features without heads, as mlp_post has"
    return _units(of, "neurons", without, lambda tap: None if tap.heads else tap.width)


def _units(of: SweptSite, what: str, such: str, count: Callable[[Tap], int | None]) -> Sequence[Place]:
    """Return the units of a site with equally many everywhere. Raises UsageError."""
    found = set(map(count, of.taps.values()))
    if len(found) > 1 or None in found or of.pattern.units is not None:
        raise UsageError(f"A sweep over {what} needs a site that has {such}; {of.pattern} not.")
    return range(found.pop() or 0)


AXES: Final[Mapping[Axis, DeclaredAxis]] = {
    "point": DeclaredAxis(part="point", places=lambda of: of.points, paired=False),
    "layer": DeclaredAxis(part="layer", places=lambda of: of.layers, windowed=True),
    "position": DeclaredAxis(part="row", places=lambda of: of.rows, windowed=True),
    "head": DeclaredAxis(part="unit", places=_heads),
    "neuron": DeclaredAxis(part="unit", places=_neurons),
    "coef": DeclaredAxis(part="coef", places=lambda of: of.coefs, paired=False),
}


def divided(over: Sequence[Axis]) -> dict[Part, Axis]:
    """Return the axis that divides each divided part. Raises UsageError where two divide one."""
    found: dict[Part, Axis] = {}
    for axis in over:
        other = found.setdefault(AXES[axis].part, axis)
        if other != axis:
            one, two = sorted((other, axis))
            raise UsageError(f"A site has {one}s or {two}s; sweep over one of them.")
    return found


def named(axes: Sequence[Axis], last: str) -> str:
    """Return in a sentence what several axes divide, with the word `last` before the last one."""
    *most, end = [f"{axis}s" for axis in axes]
    return f"{', '.join(most)} {last} {end}"


# The places of a sweep: its axes, and the spots that each cell edits.

ALL = Alignment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One place of an edit. `rows` and `units` (heads or neurons) of None are all; `source_rows` are the clean prompt's
    rows that correspond to `rows`."""

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
    """The spots that are edited together, in the order in which a pass reaches their taps. `number` counts the cells
    row by row."""

    number: int
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPlaces:
    """`axes` has the places along each axis of one cell, and `elements` their elements of the part that the axis
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
        """Return every cell, first those of a coarse grid, then those between; for a pair of cells, the place above the
        diagonal."""
        return sorted(self._cells(), key=lambda cell: (self._fineness(cell.number), cell.number))

    def _fineness(self, number: int) -> int:
        """Return the number of halvings of the grid until it has this cell."""
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
        """Return a cell's number, and the number of its place on the other side of the diagonal."""
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
    """Return the places of a site's sweep over a sequence. Raises UnknownSite and UsageError."""
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
    """Return the tap of an added module, of one layer: edits at several would not see each other's features."""
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
