"""A sweep that was asked for, checked: with tokens, taps and metrics in place of names. Computes nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.attention import BLOCK, head_blocks
from djinn_jupyter.engine.passes.conditions import Metrics, Values
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.engine.system.faults import Counters
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.engine.places import Cell, SweptPlaces
from djinn_jupyter.methods.sweep.request import Continued, EditedLine, Measured, Recipe, Sweep
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity
from djinn_jupyter.wire.nouns import ModelDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSweep:
    """A checked `request`: its edit, or None, patches from the `source` into the `line`, which are tokens. Cells
    `finished` before, by number, have values already; where cells are `chosen`, by number, these alone are computed;
    `recipe` is the digest of the request, and `made` the request with its origin."""

    request: Sweep
    places: SweptPlaces
    line: tuple[int, ...]
    source: tuple[int, ...] | None
    metrics: Metrics
    notes: tuple[str, ...] = ()
    finished: Mapping[int, Values] = field(default_factory=dict)
    chosen: frozenset[int] | None = None
    recipe: str = ""
    made: Recipe | None = None

    def cells(self) -> list[Cell]:
        """Return the cells to compute, the coarse ones first; those of pairs of cells on either side of the diagonal
        stand for both."""
        cells = self.places.cells()
        if self.chosen is None:
            return cells
        return [cell for cell in cells if not self.chosen.isdisjoint(self.places.numbers_of(cell.number))]

    def before(self, unchanged: Values) -> list[Values]:
        """Return the values of the grid's cells before any is computed: the line's own, NaN where none will be."""
        count = math.prod(self.places.shape)
        if self.chosen is None:
            return [unchanged] * count
        there = {other for number in self.chosen for other in self.places.numbers_of(number)}
        none = (math.nan,) * len(unchanged)
        return [unchanged if number in there else none for number in range(count)]

    @property
    def total(self) -> int:
        """The number of cells of the grid that get a value."""
        if self.chosen is None:
            return math.prod(self.places.shape)
        return len({other for number in self.chosen for other in self.places.numbers_of(number)})


# A sweep that goes on from the finished cells of one that was cut short. Which sweep it is a digest says, of all that
# its values follow from.

ANY_SESSION = "sweep"


def recipe_of(
    meant: Sweep,
    model: ModelDescription,
    identity: ModelIdentity,
    attention: str | None,
    adapter: AdapterIdentity | None,
    modules: Sequence[ModuleIdentity],
) -> str:
    """Return the digest of a request that has the tokens of its lines, whichever session computes it. Weights in one
    folder may have been trained on meanwhile: that the name does not tell, and the model's identity does."""
    meant = msgspec.structs.replace(meant, session=ANY_SESSION)
    of = (model.name, model.revision, identity, model.device, attention or model.attention)
    tuned = () if adapter is None else (adapter.digest,)
    added = tuple((one.name, one.at, one.digest, one.error_term) for one in modules)
    return hashlib.sha256(msgspec.msgpack.encode((meant, (*of, *tuned, *added)), enc_hook=_bytes_of)).hexdigest()


def _bytes_of(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Return what tells an edit's array from others."""
    if isinstance(value, Array):
        return value.dtype, value.shape, bytes(value.data)
    raise NotImplementedError(f"{type(value)} is in no sweep")


def finished_before(continued: Continued | None, recipe: str, shape: Sequence[int], metrics: int) -> dict[int, Values]:
    """Return the values of the cells that are finished, by number. Raises UsageError where they are of another
    sweep."""
    if continued is None:
        return {}
    if continued.recipe != recipe:
        raise UsageError(
            "The grid to go on from is of another sweep: its lines, model or arguments are others. Give those that it "
            "was made with, or leave the grid out."
        )
    numbers, values = continued.cells, continued.values
    fits = len(numbers) == len(values) <= math.prod(shape) and all(len(of_cell) == metrics for of_cell in values)
    if not fits or not all(0 <= number < math.prod(shape) for number in numbers):
        raise UsageError("The grid to go on from has cells that this sweep has not; leave it out.")
    return {number: of_cell for number, of_cell in zip(numbers, values, strict=True)}  # noqa: C416  gives way to others


@dataclass(slots=True, kw_only=True)
class Found:
    """`unchanged` are the `metrics` of the line without an edit, `sizes` the largest logits that they read there, and
    `values` those of each cell. `rounding` is the share of its size by which a logit may differ among others. `largest`
    are the largest differences of the cells computed again, whose values alone are `exact`, None while there are
    none."""

    metrics: tuple[str, ...]
    rounding: float
    sizes: Values
    unchanged: Values
    values: list[Values]
    computed: list[int] = field(default_factory=list)
    rechecked: list[int] = field(default_factory=list)
    exact: list[Values] = field(default_factory=list)
    largest: Values | None = None
    missed: int | None = None  # a cell that was left out wrongly
    notes: list[str] = field(default_factory=list)

    def keep(self, values: Mapping[int, Values], computed: Iterable[int]) -> None:
        """Take the values of cells that were finished before, of which some were `computed`."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += computed

    def take(self, values: Mapping[int, Values]) -> None:
        """Note the values of cells that were computed, by number."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += values

    def recheck(self, number: int, exact: Values, *, computed: bool) -> None:
        """Note a cell's `exact` values beside those that it has: `computed` together with others, or left out."""
        if computed:
            self.compare(exact, self.values[number])
        else:
            self.exact.append(exact)
            if any(map(_difference, exact, self.values[number])):
                self.missed = number
        self.rechecked.append(number)

    def compare(self, exact: Values, together: Values) -> None:
        """Note the `exact` values of a line beside those that it has together with others."""
        differences = tuple(map(_difference, exact, together))
        self.largest = differences if self.largest is None else tuple(map(max, self.largest, differences))
        self.exact.append(exact)

    def begin_again(self, unchanged: Values, sizes: Values, values: list[Values]) -> None:
        """Distrust what was computed together; take these of the line without an edit, and those of each cell."""
        self.unchanged, self.sizes, self.values = unchanged, sizes, values
        self.largest, self.rechecked = None, []
        self.computed.clear()

    def tolerance(self, metric: int) -> float:
        """Return by how much the cells computed together may differ in a metric, by its number. A wrong value of one
        of them makes no difference to it."""
        found = (self.sizes[metric], *(values[metric] for values in self.exact))
        return self.rounding * max(1.0, *(abs(one) for one in found if math.isfinite(one)))

    def distrusted(self) -> str | None:
        """Return why the recheck does not bear out the cells computed together, None where it does."""
        if self.missed is not None:
            return f"Cell {self.missed} was left out, and the edit changes something there"
        for number, largest in enumerate(self.largest or ()):
            if largest > self.tolerance(number):
                return (
                    f"Cells computed together differed from the same computed alone by up to {largest:.2g}, more than "
                    f"{self.tolerance(number):.2g}"
                )
        return None

    def measured(self, shape: tuple[int, ...], source: Values | None, into: EditedLine) -> tuple[Measured, ...]:
        """Return each metric of all cells; `source` are those of the other line of the pair, the one not edited."""
        clean, corrupted = (source, self.unchanged) if into == "corrupted" else (self.unchanged, source)
        assert corrupted is not None
        columns = torch.tensor(self.values, dtype=torch.float64).reshape(*shape, len(self.metrics))
        return tuple(
            Measured(
                metric=text,
                values=to_array(columns[..., number].contiguous()),
                corrupted=corrupted[number],
                clean=None if clean is None else clean[number],
                largest_difference=None if self.largest is None else self.largest[number],
                tolerance=self.tolerance(number),
            )
            for number, text in enumerate(self.metrics)
        )


def _difference(one: float, other: float) -> float:
    """Return by how much two values differ: infinitely where only one of them is a finite number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    difference = abs(one - other)
    return math.inf if math.isnan(difference) else difference


# The logits of a metric's tokens from a head that computes no others: only where it is proved that they then have the
# bits that they have among all. A product over fewer columns may add in another order. Blocks of 64 columns, as they
# lie in the weights, keep the order of the whole on CPUs; that is tried for every block, and where one differs the
# head computes all logits.

ROWS: Final = 3  # random rows: where the order differs, nearly every logit does, in bf16 one of some thousand


class FewLogits:
    """The proof for one model, made when the first sweep asks for it, for each number of threads that computes. By then
    a line has been seen."""

    def __init__(self, forward: Forward, counters: Counters) -> None:
        self._forward, self._counters = forward, counters
        self._proved: dict[int, bool] = {}
        self._distrusted = False
        self._row: tuple[int, ...] = (forward.anatomy.hidden_size,)

    def see(self, behind_1SD: Tensor) -> None:
        """Take the shape of a row from a line's behind the last layer: there may be several streams."""
        self._row = tuple(behind_1SD.shape[2:])

    def of(self, tokens: tuple[int, ...] | None) -> Generator[None, None, tuple[int, ...] | None]:
        """Return `tokens` where a pass may compute their logits alone, None where it has to compute those of all."""
        if tokens is None:
            return None
        if self._distrusted or not (yield from self._is_proved()):
            self._counters.count_whole_head()
            return None
        return tokens

    def distrust(self) -> None:
        """Compute all logits from here on: a recheck has found a line whose bits are others."""
        self._distrusted = True

    def _is_proved(self) -> Generator[None, None, bool]:
        threads = torch.get_num_threads()
        if threads not in self._proved:
            self._proved[threads] = yield from self._holds()
        return self._proved[threads]

    def _holds(self) -> Generator[None, None, bool]:
        """Return whether all blocks together have the bits of the whole head, and one alone has its own, for each of
        some random rows: nothing behind the head may mix a row's logits."""
        for row_1D in self._rows():
            whole = self._forward.lens(row_1D)
            last = whole.shape[1] - 1
            yield
            for tokens in (range(0, last + 1, BLOCK), [last]):
                first = tokens[0] // BLOCK * BLOCK
                some = self._in_blocks(row_1D, tokens)
                if some is None or not torch.equal(some[:, first:], whole[:, first:]):
                    return False
                yield
        return True

    def _in_blocks(self, row_1D: Tensor, tokens: Sequence[int]) -> Tensor | None:
        """Return the logits of a row by blocks; None where the head is no plain linear map."""
        try:
            with head_blocks(self._forward.model, tokens):
                return self._forward.lens(row_1D)
        except TypeError:
            return None

    def _rows(self) -> list[Tensor]:
        forward = self._forward
        drawn = torch.randn((ROWS, 1, *self._row), generator=torch.Generator().manual_seed(1))
        return list(drawn.to(forward.device, forward.model.dtype))
