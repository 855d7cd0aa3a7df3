"""A checked sweep request, with tokens, taps and metrics in place of names; earlier cells, the cells so far, and the
proof for single logits."""

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
        """Return the cells to compute, the coarse ones first; of pairs of cells, one side of the diagonal stands for
        both."""
        cells = self.places.cells()
        if self.chosen is None:
            return cells
        return [cell for cell in cells if not self.chosen.isdisjoint(self.places.numbers_of(cell.number))]

    def before(self, unchanged: Values) -> list[Values]:
        """Return the initial values of the grid's cells: the sequence's own, NaN for cells that stay empty."""
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


# A sweep that continues from the finished cells of an incomplete one. A digest of everything that its values follow
# from identifies the sweep.

ANY_SESSION = "sweep"


def recipe_of(
    meant: Sweep,
    model: ModelDescription,
    identity: ModelIdentity,
    attention: str | None,
    adapter: AdapterIdentity | None,
    modules: Sequence[ModuleIdentity],
) -> str:
    """Return the digest of a request with its prompts' tokens, for any session. The weights in one folder may have
    changed meanwhile, which the model's identity shows and its name does not."""
    meant = msgspec.structs.replace(meant, session=ANY_SESSION)
    of = (model.name, model.revision, identity, model.device, attention or model.attention)
    tuned = () if adapter is None else (adapter.digest,)
    added = tuple((one.name, one.at, one.digest, one.error_term) for one in modules)
    return hashlib.sha256(msgspec.msgpack.encode((meant, (*of, *tuned, *added)), enc_hook=_bytes_of)).hexdigest()


def _bytes_of(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Return the identity of an edit's array."""
    if isinstance(value, Array):
        return value.dtype, value.shape, bytes(value.data)
    raise NotImplementedError(f"{type(value)} is in no sweep")


def finished_before(continued: Continued | None, recipe: str, shape: Sequence[int], metrics: int) -> dict[int, Values]:
    """Return the values of the finished cells, by number. Raises UsageError where they are of another sweep."""
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
    """`unchanged` are the `metrics` without an edit, `sizes` the largest logits that they read there, and `values`
    those of each cell. `rounding` is the relative tolerance of a logit in a batch. `largest` are the largest
    differences of the recomputed cells, whose values are the only `exact` ones, None while there are none."""

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
        """Restore finished cells; some of them were `computed`."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += computed

    def take(self, values: Mapping[int, Values]) -> None:
        """Record the values of computed cells, by number."""
        for number, of_cell in values.items():
            self.values[number] = of_cell
        self.computed += values

    def recheck(self, number: int, exact: Values, *, computed: bool) -> None:
        """Record a cell's `exact` values beside its earlier ones: `computed` together with others, or left out."""
        if computed:
            self.compare(exact, self.values[number])
        else:
            self.exact.append(exact)
            if any(map(_difference, exact, self.values[number])):
                self.missed = number
        self.rechecked.append(number)

    def compare(self, exact: Values, together: Values) -> None:
        """Record the `exact` values of a sequence beside its values in a batch."""
        differences = tuple(map(_difference, exact, together))
        self.largest = differences if self.largest is None else tuple(map(max, self.largest, differences))
        self.exact.append(exact)

    def begin_again(self, unchanged: Values, sizes: Values, values: list[Values]) -> None:
        """Drop the cells computed together; use these values without an edit, and those of each cell."""
        self.unchanged, self.sizes, self.values = unchanged, sizes, values
        self.largest, self.rechecked = None, []
        self.computed.clear()

    def tolerance(self, metric: int) -> float:
        """Return the tolerance of the cells computed together in a metric, by its number. A wrong value of one of them
        does not change it."""
        found = (self.sizes[metric], *(values[metric] for values in self.exact))
        return self.rounding * max(1.0, *(abs(one) for one in found if math.isfinite(one)))

    def distrusted(self) -> str | None:
        """Return why the recheck contradicts the cells computed together, None where it does not."""
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
        """Return each metric of all cells; `source` are those of the other prompt of the pair, which is not edited."""
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
    """Return the difference of two values: infinite where only one of them is finite."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    difference = abs(one - other)
    return math.inf if math.isnan(difference) else difference


# The logits of a metric's tokens from a head that computes no others: only where they are proved to have the same bits
# as among all. A product over fewer columns may add in another order. Blocks of 64 columns, as in the weights, keep the
# order of the whole on CPUs. Every block is tested, and if one differs the head computes all logits.

ROWS: Final = 3  # random rows: where the order differs, nearly every logit does, in bf16 one in some thousand


class FewLogits:
    """The proof for one model and number of threads, made at the first sweep, after a sequence has run."""

    def __init__(self, forward: Forward, counters: Counters) -> None:
        self._forward, self._counters = forward, counters
        self._proved: dict[int, bool] = {}
        self._distrusted = False
        self._row: tuple[int, ...] = (forward.anatomy.hidden_size,)

    def see(self, behind_1SD: Tensor) -> None:
        """Record the shape of a row after the last layer: there may be several streams."""
        self._row = tuple(behind_1SD.shape[2:])

    def of(self, tokens: tuple[int, ...] | None) -> Generator[None, None, tuple[int, ...] | None]:
        """Return `tokens` where a pass may compute only their logits, None where it has to compute all."""
        if tokens is None:
            return None
        if self._distrusted or not (yield from self._is_proved()):
            self._counters.count_whole_head()
            return None
        return tokens

    def distrust(self) -> None:
        """Compute all logits from here on: a recheck has found other bits."""
        self._distrusted = True

    def _is_proved(self) -> Generator[None, None, bool]:
        threads = torch.get_num_threads()
        if threads not in self._proved:
            self._proved[threads] = yield from self._holds()
        return self._proved[threads]

    def _holds(self) -> Generator[None, None, bool]:
        """Return whether all blocks together have the bits of the whole head, and one alone has its own, for each of
        some random rows: nothing after the head may mix a row's logits."""
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
        """Return the logits of a row by blocks; None where the head is not a plain linear map."""
        try:
            with head_blocks(self._forward.model, tokens):
                return self._forward.lens(row_1D)
        except TypeError:
            return None

    def _rows(self) -> list[Tensor]:
        forward = self._forward
        drawn = torch.randn((ROWS, 1, *self._row), generator=torch.Generator().manual_seed(1))
        return list(drawn.to(forward.device, forward.model.dtype))
