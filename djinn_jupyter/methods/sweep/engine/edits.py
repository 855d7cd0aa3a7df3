"""The value at a cell of a sweep: the clean prompt's, an edit of the original one, or one made from a whole
sequence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes import edits as edit_kinds
from djinn_jupyter.engine.passes.controller import Unmarked
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.sweep.engine.places import Cell, Spot
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample, SweptEdit
from djinn_jupyter.wire.edits import PatchFrom, require_coefficient, with_coefficient
from djinn_jupyter.wire.sites import Site


def check(edit: SweptEdit, width: int, *, coefs: bool) -> None:
    """Raise InvalidEdit or UsageError for an edit that a sweep cannot make."""
    if isinstance(edit, PatchFrom):
        raise InvalidEdit("A sweep patches from its clean line: give that, and no edit.")
    if coefs:
        require_coefficient(edit, "A sweep over coef")
    if not isinstance(edit, Mean | Resample):
        edit_kinds.check(edit, width)


def reads_a_line(edit: SweptEdit | None) -> bool:
    """Return whether an edit uses values of the clean prompt."""
    return edit is None or isinstance(edit, Mean | Resample)


def spell(edit: SweptEdit | None, noise: Noise | None = None, source: str = "clean") -> str:
    if noise is not None:
        places = ", ".join(map(str, noise.positions))
        return f"{spell(edit)}, noise {noise.scale:g} at {places}"
    match edit:
        case None:
            return f"patch from the {source} line"
        case Mean():
            return "mean over positions"
        case Resample():
            return "resample positions"
    return edit_kinds.spell(edit)


def part_of(edit: SweptEdit | None, spot: Spot, value: Tensor, source: Tensor, seed: int) -> Tensor:
    """Return the replacement for a spot: `value` is the pass's there, at all positions, `source` the clean prompt's, or
    without one the unedited one's."""
    if edit is None:
        return edits.take(source, None if spot.source_rows is None else list(spot.source_rows), spot.units)
    if isinstance(edit, Mean):
        mean = edits.take(source.to(torch.float32).mean(0, keepdim=True).to(source.dtype), None, spot.units)
        return mean.expand(len(value) if spot.rows is None else len(spot.rows), *mean.shape[1:]).clone()
    if isinstance(edit, Resample):
        drawn = elsewhere(len(source), seed)
        rows = drawn if spot.source_rows is None else [drawn[row] for row in spot.source_rows]
        return edits.take(source, rows, spot.units)
    if spot.coef is not None:
        edit = with_coefficient(edit, spot.coef)
    return edit_kinds.compute(edits.take(value, spot.at, spot.units), edit)


def elsewhere(count: int, seed: int) -> list[int]:
    """Return another position for each of so many, drawn by the seed: one cycle through all in a random order."""
    order = random.Random(seed).sample(range(count), count)
    following = dict(zip(order, [*order[1:], *order[:1]], strict=True))
    return [following[position] for position in range(count)]


def noised(raw_1SD: Tensor, noise: Noise, seed: int) -> Tensor:
    """Return the values plus noise. The draws are made on the CPU: every device gets the same."""
    length, width = raw_1SD.shape[1:]
    rows = sorted({position % length for position in noise.positions})
    drawn = torch.randn((len(rows), width), generator=torch.Generator().manual_seed(seed))
    deviation = raw_1SD.to(torch.float32).std()
    changed = raw_1SD.clone()
    changed[0, rows] += (noise.scale * deviation * drawn.to(raw_1SD.device)).to(raw_1SD.dtype)
    return changed


# The edits of a cell in a pass: the value at its first changed tap, and edits of values at later taps. A later spot of
# a cell edits the pass's present value, like a hook, not the unedited sequence's.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaterEdit(Unmarked):
    """The edit of a pass's value at a tap. `value` is the unedited sequence's there."""

    tap: Tap
    value: Tensor
    change: Callable[[Tensor], Tensor]

    @property
    def taps(self) -> tuple[Tap, ...]:
        return (self.tap,)

    @property
    def places(self) -> tuple[Site, ...]:
        return (self.tap.site.whole(),)

    def apply(self, site_value: SiteValue, counted: bool) -> tuple[Tensor, Change] | None:
        return self.change(site_value.value), Change(what="swept", size=0.0)

    @property
    def boundary(self) -> int:
        """The boundary between layers of the tap."""
        assert self.tap.boundary is not None
        return self.tap.boundary

    def of_rows(self, rows_nD: Tensor) -> Tensor:
        """Return the last rows of a sequence at this tap, which is between layers, with the edit applied."""
        above = self.value.shape[0] - rows_nD.shape[0]
        return self.change(torch.cat([self.value[:above], rows_nD]))[above:]

    def first_changed(self) -> int | None:
        """Return the first row that the edit changes in the unedited sequence, None without one."""
        return first_other(self.change(self.value), self.value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellEdit:
    """A cell's first tap with the `raw` value to put there, and the edits of later ones."""

    tap: Tap
    raw: Tensor
    later: tuple[LaterEdit, ...] = ()


class CellEdits:
    """The edits of every cell of a sweep."""

    def __init__(self, edit: SweptEdit | None, seed: int, base: RunLine, clean: RunLine | None) -> None:
        self.edit, self.seed, self.base, self.clean = edit, seed, base, clean
        self._alike: dict[Site, frozenset[int]] = {}  # rows that both sequences have, by site
        self._read: dict[tuple[int, Site], Tensor] = {}  # values by sequence and site: an added module computes them

    def of(self, cell: Cell, *, always: bool = False) -> CellEdit | None:
        """Return the edit of a cell; None where it changes no bit, except `always` for a recheck."""
        taps = [(tap, list(spots)) for tap, spots in groupby(cell.spots, key=lambda spot: spot.tap)]
        for number, (tap, spots) in enumerate(taps):
            if not always and all(map(self._patches_the_same, spots)):
                continue
            value = self._value(self.base, tap)
            parts = [self._part(spot, value) for spot in spots]
            if always or not all(map(same_bits, parts, (edits.take(value, spot.at, spot.units) for spot in spots))):
                later = tuple(self._later(*one) for one in taps[number + 1 :])
                raw = tap.write(self.base.raw[tap.site], _put(value, spots, parts), value)
                return CellEdit(tap=tap, raw=raw, later=later)
        return None

    def patch_from(self, source: RunLine) -> None:
        """Patch with the values of this sequence from here on."""
        self.clean = source
        self._alike.clear()
        self._read.clear()

    def nbytes(self, cell: Cell) -> int:
        """Return the bytes of the values to compare for a cell."""
        return sum(self.base.raw[spot.tap.site].nbytes for spot in cell.spots)

    def _patches_the_same(self, spot: Spot) -> bool:
        """Return whether a spot is patched with rows equal to the base's, from one comparison of all of them."""
        if self.edit is not None or self.clean is None or spot.rows is None or spot.rows != spot.source_rows:
            return False
        site = spot.tap.site
        if site not in self._alike:
            self._alike[site] = rows_alike(self._value(self.base, spot.tap), self._value(self.clean, spot.tap))
        return self._alike[site].issuperset(spot.rows)

    def _later(self, tap: Tap, spots: Sequence[Spot]) -> LaterEdit:
        def change(value: Tensor) -> Tensor:
            return _put(value, spots, [self._part(spot, value) for spot in spots])

        return LaterEdit(tap=tap, value=self._value(self.base, tap), change=change)

    def _value(self, line: RunLine, tap: Tap) -> Tensor:
        """Return the value of a sequence at a tap, read once."""
        key = (id(line), tap.site)
        if key not in self._read:
            self._read[key] = tap.read(line.raw[tap.site])
        return self._read[key]

    def _part(self, spot: Spot, value: Tensor) -> Tensor:
        """Return the replacement for a spot where the pass has `value`."""
        tap = spot.tap
        line = self.base if self.clean is None or tap.site not in self.clean.raw else self.clean
        return part_of(self.edit, spot, value, self._value(line, tap), self.seed)


def same_bits(part: Tensor, before: Tensor) -> bool:
    return torch.equal(part, before)


def rows_alike(rows_SD: Tensor, others_SD: Tensor) -> frozenset[int]:
    """Return the rows with the same bits as the others', none where their numbers differ."""
    if rows_SD.shape != others_SD.shape:
        return frozenset()
    return frozenset((rows_SD == others_SD).flatten(1).all(1).nonzero().flatten().tolist())


def first_other(rows_SD: Tensor, base_SD: Tensor) -> int | None:
    """Return the first row that differs from the base's in a bit, None without one."""
    other = (rows_SD != base_SD).flatten(1).any(1).nonzero()
    return int(other[0]) if len(other) else None


def _put(value: Tensor, spots: Sequence[Spot], parts: Sequence[Tensor]) -> Tensor:
    for spot, part in zip(spots, parts, strict=True):
        value = edits.put(value, part, spot.at, spot.units)
    return value
