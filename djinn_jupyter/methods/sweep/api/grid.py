"""The grid of a sweep: its file, its statistics over pairs, and its numbers by cell. A grid is not a `Result`: it is
kept without a recipe too, with all its replies as one tensor, and is computed again by sweeps that report their
progress."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.arrays import from_numpy, largest, to_numpy
from djinn_jupyter.api.names import Digests, digests_in, labelled, labelled_numbers
from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.api.result_files import FileContent, Reproducible, Tensors, decoded, encoded, named, put, read
from djinn_jupyter.api.tables import SHORT, TAIL, Charted, Tabular, frame_of, is_picture, shortened
from djinn_jupyter.errors import DjinnError, SweepEnded, UsageError
from djinn_jupyter.methods.common.api import SpreadResults
from djinn_jupyter.methods.sweep.api.pair_metrics import PerPair, spelled
from djinn_jupyter.methods.sweep.request import Continued, Measured, Recipe, Sweep, Swept
from djinn_jupyter.wire.provenance import Provenance, differences


class KeptGrid(FileContent, kw_only=True):
    """The content of a file; the fields are those of a Grid."""

    ending = ".grid.djinn"
    named = "grid of a sweep"

    paired: bool
    several: bool
    interrupted: bool
    missing: int
    replies: tuple[Swept, ...]

    def tensors(self, shape: Sequence[int]) -> Tensors:
        """Return the values of all replies as one tensor of this shape."""
        return {"values": (shape, [one.values for reply in self.replies for one in reply.measured])}

    def require_fit(self) -> None:
        if not self.replies or not all(reply.measured for reply in self.replies):
            raise ValueError("it has no values")
        shapes = {one.values.shape for reply in self.replies for one in reply.measured}
        metrics = {tuple(one.metric for one in reply.measured) for reply in self.replies}
        fit = all(len(one.over) == len(one.places) and tuple(map(len, one.places)) in shapes for one in self.replies)
        alone = (self.paired or len(self.replies) == 1) and (self.several or len(self.replies[0].measured) == 1)
        same = len(metrics) == 1 or (self.paired and not self.several)
        if not (fit and alone and same and len(shapes) == 1):
            raise ValueError("its values and its axes do not fit")
        if {one.values.dtype for reply in self.replies for one in reply.measured} != {"float64"}:
            raise ValueError("its values are not float64")
        if not all(map(_fits_confirmed, self.replies)):
            raise ValueError("its confirmed cells are none of its cells")
        if not all(map(_has_texts, self.replies)):
            raise ValueError("its positions have no tokens")
        if not all(map(_has_lines, self.replies)):
            raise ValueError("its lines are no tokens")


def _fits_confirmed(reply: Swept) -> bool:
    """Return whether the confirmed cells are cells of the reply, each with a change for each metric."""
    kept, count = reply.confirmed, math.prod(map(len, reply.places))
    if kept is None:
        return True
    fits = len(kept.cells) == len(kept.changes) and all(len(row) == len(reply.measured) for row in kept.changes)
    return fits and all(0 <= cell < count for cell in kept.cells)


def _has_lines(reply: Swept) -> bool:
    """Return whether the recipe has the prompts' tokens: the name of a session would mean one of the reader's own."""
    asked = None if reply.made is None else reply.made.asked
    return asked is None or not any(isinstance(line, str) for line in (asked.corrupted, asked.clean))


def _has_texts(reply: Swept) -> bool:
    """Return whether each position has a token's text; an unfinished sweep has no texts."""
    along = [
        place for axis, places in zip(reply.over, reply.places, strict=True) if axis == "position" for place in places
    ]
    return not reply.texts or all(isinstance(at, int) and 0 <= at < len(reply.texts) for at in along)


# Statistics of a cell over many pairs: the mean change of the metric, its interval, and its p-value. A pair's change is
# its value minus the metric of its own corrupted prompt, so that each pair is its own control. The interval is a
# percentile bootstrap over pairs (Efron and Tibshirani 1993), the p-value that of the sign-flip test (Fisher 1935): how
# often the mean change is as large, in either direction, under random signs of the pairs' changes. Neither assumes a
# distribution. Each cell is judged alone: of a thousand cells without effect about fifty have p below 0.05.

Matrix = np.ndarray[Any, np.dtype[np.float64]]
FEWEST: Final = 5  # pairs for an interval: with fewer the bounds are little more than the pairs themselves
NO_INTERVAL: Final = f"no interval: it is drawn from {FEWEST} pairs or more"
EXACT: Final = 13  # pairs up to which all 2^n signs are tried
AT_ONCE: Final = 2**22  # numbers of one product of draws and cells
SLACK: Final = 1e-12  # of the observed mean: another order of summation changes the last bit


@dataclass(frozen=True, kw_only=True, eq=False)
class PairStatistics(Tabular):
    """Arrays with an axis for each of the grid's but the pairs: `mean` of the values, mean `change` from the corrupted
    lines, its `standard_error`, the bounds `low` and `high` of its interval, its `p`-value, and the number of `pairs`
    of each. NaN where fewer than two pairs have the cell; `low` and `high` also where fewer than five have it. `places`
    are those of the cells, row by row, by axis."""

    mean: Matrix
    change: Matrix
    standard_error: Matrix
    low: Matrix
    high: Matrix
    p: Matrix
    pairs: np.ndarray[Any, Any]
    confidence: float
    resamples: int
    seed: int
    places: Mapping[str, list[Any]]

    def columns(self) -> dict[str, list[Any]]:
        """Return the places and each array as a list, cell by cell."""
        named = ("mean", "change", "standard_error", "low", "high", "p", "pairs")
        return {**self.places, **{name: getattr(self, name).reshape(-1).tolist() for name in named}}


def statistics_of(values: Matrix, corrupted: Matrix, confidence: float, resamples: int, seed: int) -> PairStatistics:
    """Return the statistics of values [pair, ...]; `corrupted` has their first axes. Raises UsageError."""
    if not 0 < confidence < 1 or resamples < 100:
        raise UsageError("An interval has a confidence between 0 and 1, such as 0.95, and at least 100 resamples.")
    if len(values) < 2:
        raise UsageError("Statistics are over pairs: give two or more pairs of lines, as lists.")
    shape, flat = values.shape[1:], values.reshape(len(values), -1)
    own = corrupted.reshape(*corrupted.shape, *[1] * (values.ndim - corrupted.ndim))
    changes = (values - own).reshape(flat.shape)
    found = np.full((7, flat.shape[1]), np.nan)
    known = ~np.isnan(changes)
    for pattern in np.unique(known, axis=1).T:  # a sweep that ended early has part of its last pair
        if pattern.sum() < 2:
            continue
        cells = (known == pattern[:, None]).all(0)
        of_these = changes[np.ix_(pattern, cells)]
        found[0, cells] = flat[np.ix_(pattern, cells)].mean(0)
        found[1, cells] = of_these.mean(0)
        found[2, cells] = of_these.std(0, ddof=1) / np.sqrt(len(of_these))
        if len(of_these) >= FEWEST:
            found[3:5, cells] = _interval(of_these, confidence, resamples, np.random.default_rng(seed))
        found[5, cells] = _p(of_these, resamples, np.random.default_rng(seed))
    named = ("mean", "change", "standard_error", "low", "high", "p")
    arrays = {name: row.reshape(shape) for name, row in zip(named, found, strict=False)}
    pairs = known.sum(0).reshape(shape)
    return PairStatistics(**arrays, pairs=pairs, confidence=confidence, resamples=resamples, seed=seed, places={})


def _interval(changes: Matrix, confidence: float, resamples: int, random: np.random.Generator) -> Matrix:
    """Return the bounds [2, cells] of the means of resampled pairs."""
    count = len(changes)
    weights = random.multinomial(count, [1 / count] * count, size=resamples) / count
    sides = [(1 - confidence) / 2, (1 + confidence) / 2]
    return np.concatenate([np.quantile(weights @ some, sides, axis=0) for some in _parts(changes, resamples)], axis=1)


def _p(changes: Matrix, resamples: int, random: np.random.Generator) -> Matrix:
    """Return the p-values [cells] of nonzero means: over all signs for few pairs, else over drawn ones."""
    count = len(changes)
    exact = count <= EXACT
    drawn = list(product((-1.0, 1.0), repeat=count)) if exact else random.choice((-1.0, 1.0), (resamples, count))
    signs = np.asarray(drawn) / count
    found = []
    for some in _parts(changes, len(signs)):
        as_large = (np.abs(signs @ some) >= np.abs(some.mean(0)) * (1 - SLACK)).sum(0)
        found.append(as_large / len(signs) if exact else (as_large + 1) / (len(signs) + 1))
    return np.concatenate(found)


def _parts(changes: Matrix, draws: int) -> list[Matrix]:
    """Return the cells in parts whose product with the draws is no larger than AT_ONCE."""
    step = max(1, AT_ONCE // draws)
    return [changes[:, first : first + step] for first in range(0, changes.shape[1], step)]


# The result of a sweep: numbers by cell, their computation, and their exactness. Asks nothing of an engine.

NAME: Final = 24  # characters of a feature's name in a grid
UNFINISHED: Final = "unfinished"  # the edit of a sweep that ended before its last cell
FLAGS: Final = ("paired", "several", "interrupted", "missing")
RECIPE: Final = ("site", "over", "edit", "windows", "in_pairs", "receivers", "into", "mode", "seed")


class Grid(Charted, Reproducible):
    """`values` is float64 with one axis for each of `over`; with `paired`, a first axis counts the pairs, and with
    `several` metrics the next axis counts them; `per_pair` has the metrics where each pair has its own. Unfinished
    cells are NaN. `replies` holds the sweep of each pair; `missing` pairs were not reached. `interrupted` is True where
    an interrupt ended the sweep. `steps` is the number of gradients of an attribution, whose values are changes of the
    metric, and with the correction "cancellation" their magnitudes; None for a sweep."""

    _view = "grid_view"
    ending = KeptGrid.ending
    reproduced_by = "djinn_jupyter.methods.sweep.api.sweeping:reproduced_grid"

    def __init__(
        self,
        replies: Sequence[Swept],
        *,
        paired: bool = False,
        several: bool = False,
        interrupted: bool = False,
        missing: int = 0,
    ) -> None:
        self.replies, self.paired, self.several = tuple(replies), paired, several
        self.interrupted, self.missing = interrupted, missing
        first = self.replies[0]
        self.site, self.edit, self.seed = first.site, first.edit, first.seed
        self.in_pairs, self.windows = first.in_pairs, dict(first.windows)
        self.receivers, self.into = first.receivers, first.into
        self.steps = None if first.estimate is None else first.estimate.steps
        self.corrections = () if first.estimate is None else first.estimate.corrections
        self.metrics = tuple(one.metric for one in first.measured)
        each = tuple(one.measured[0].metric for one in self.replies)
        self.per_pair = each if paired and not several and len(set(each)) > 1 else ()
        counted = (("pair", paired), ("metric", several))
        self.over: tuple[str, ...] = (*(name for name, there in counted if there), *_axes(first))
        self.mode = "fast" if any(one.mode == "fast" for one in self.replies) else "exact"
        values = [[to_numpy(measured.values) for measured in one.measured] for one in self.replies]
        self.values: np.ndarray[Any, Any] = np.array(self._of_each(values), dtype=np.float64)

    @property
    def _digests(self) -> Digests | None:
        return digests_in([module for one in self.replies if one.made is not None for module in one.made.modules])

    def along(self, axis: str) -> tuple[Any, ...]:
        """Return the places along an axis, of the first pair where pairs differ; empty for an unknown axis."""
        return dict(zip(self.over, self.places(), strict=True)).get(axis, ())

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers along that axis."""
        return self.along("layer")

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions along that axis."""
        return self.along("position")

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads along that axis."""
        return self.along("head")

    @property
    def metric(self) -> str:
        """The metric; several are joined by commas, and where each pair has its own it is the first."""
        return spelled(self.per_pair) if self.per_pair else ", ".join(self.metrics)

    @property
    def is_whole(self) -> bool:
        """False for an incomplete sweep; `dj.sweep(..., so_far=grid)` continues it."""
        return not self.missing and all(one.edit != UNFINISHED for one in self.replies)

    def of(self, metric: str | int) -> Grid:
        """Return the grid of one metric of several, by its text or its number. Raises UsageError."""
        texts = list(self.metrics)
        number = texts.index(metric) if isinstance(metric, str) and metric in texts else metric
        if isinstance(number, str) or not 0 <= number < len(texts):
            raise UsageError(f"This grid has no metric {metric!r}; it has {', '.join(texts)}.")
        replies = [_of_metric(one, int(number)) for one in self.replies]
        return Grid(replies, paired=self.paired, interrupted=self.interrupted, missing=self.missing)

    @property
    def texts(self) -> tuple[str, ...]:
        """The tokens of the edited prompt, of the first pair where there are several."""
        return self.replies[0].texts

    @property
    def corrupted(self) -> Any:
        """The metric of the corrupted prompt without an edit; an array with an entry for each pair, and each metric."""
        return self._numbers([[measured.corrupted for measured in one.measured] for one in self.replies])

    @property
    def clean(self) -> Any:
        """The metric of the clean prompt; None without one."""
        found = [[measured.clean for measured in one.measured] for one in self.replies]
        return None if any(None in of_a_pair for of_a_pair in found) else self._numbers(found)

    @property
    def unedited(self) -> Any:
        """The metric of the edited prompt without the edit, with which cells are compared. It is 0 for an attribution,
        whose cells are changes."""
        if self.steps is not None:
            return self._numbers([[0.0] * len(one.measured) for one in self.replies])
        return self.clean if self.into == "clean" else self.corrupted

    @property
    def confirmed(self) -> Any:
        """The changes of the metric that an exact sweep found in the strongest cells of an attribution, in the shape of
        `values`, NaN elsewhere; None where no cell was confirmed."""
        if all(one.confirmed is None for one in self.replies):
            return None
        found = [_confirmed_of(one) for one in self.replies]
        return np.array(self._of_each(found), dtype=np.float64)

    @property
    def are_sizes(self) -> bool:
        """True where the values are magnitudes of changes, without a sign."""
        return "cancellation" in self.corrections

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation of the scores and the changes (or their magnitudes, where scores are) of all confirmed
        cells; None for fewer than two, or for equal ones. For one of several metrics use `grid.of("...").correlation`.
        Raises UsageError."""
        if self.several:
            raise UsageError('Of several metrics each has a correlation of its own: grid.of("...").correlation.')
        changes = self.confirmed
        at = np.zeros(self.values.shape, dtype=bool) if changes is None else ~np.isnan(changes)
        found = np.zeros(0) if changes is None else changes[at]
        both = np.stack([self.values[at], np.abs(found) if self.are_sizes else found])
        if both.shape[1] < 2 or not both.std(axis=1).all():
            return None
        return float(np.corrcoef(both)[0, 1])

    def _of_each(self, found: Sequence[Sequence[Any]]) -> Any:
        """Return the values by pair and metric, without axes that this grid does not have."""
        by_pair = found if self.several else [one[0] for one in found]
        return by_pair if self.paired else by_pair[0]

    def _numbers(self, found: Sequence[Sequence[Any]]) -> Any:
        kept = self._of_each(found)
        return np.array(kept, dtype=np.float64) if self.paired or self.several else kept

    @property
    def computed(self) -> int:
        """The computed cells; in the others the edit changes no bit."""
        return sum(one.computed for one in self.replies)

    @property
    def largest_difference(self) -> float | None:
        """The largest difference between cells computed together and alone, for the rechecked ones. None where each was
        computed alone."""
        each = [measured.largest_difference for one in self.replies for measured in one.measured]
        return max((found for found in each if found is not None), default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the computation of the cells for a reader."""
        return tuple(dict.fromkeys(note for one in self.replies for note in one.notes))

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the grid: the arguments of `dj.sweep`, and the tokens of each prompt; for a complete grid also
        the ids of all `lines`, and the `provenance`."""
        told = {name: getattr(self.replies[0], name) for name in RECIPE}
        metric = PerPair(self.per_pair) if self.per_pair else list(self.metrics) if self.several else self.metric
        steps = {} if self.steps is None else {"steps": self.steps, "corrections": self.corrections}
        made = [one.made for one in self.replies if one.made is not None]
        lines = [{"corrupted": one.asked.corrupted, "clean": one.asked.clean} for one in made]
        origin = {"lines": lines, "provenance": msgspec.structs.asdict(made[0].by)} if made else {}
        return told | steps | {"metric": metric, "texts": [one.texts for one in self.replies]} | origin

    def places(self) -> tuple[tuple[Any, ...], ...]:
        """Return the places along each axis."""
        counted = {"pair": tuple(range(len(self.replies))), "metric": self.metrics}
        return (*(counted[axis] for axis in self.over if axis in counted), *self.replies[0].places)

    @typed
    def top(self, count: int = STRONGEST) -> list[tuple[Any, ...]]:
        """Return the `count` cells with the largest changes of the metric, by magnitude, the largest first: each with
        its place along the axes, and the change from `unedited`; for pairs the mean over them, for cells that all have.
        UsageError."""
        own = np.reshape(self.unedited, (*np.shape(self.unedited), *[1] * (self.values.ndim - np.ndim(self.unedited))))
        changes = self.values - own
        places = self.places()[self.paired :]
        found = largest(changes.mean(axis=0) if self.paired else changes, count)
        return [(*(of[at] for of, at in zip(places, cell, strict=True)), change) for cell, change in found]

    def statistics(self, *, confidence: float = 0.95, resamples: int = 9999, seed: int = 0) -> PairStatistics:
        """Return the statistics of each cell over the pairs: mean, standard error, bootstrap interval and p-value of
        the change from the unedited prompts; no interval for fewer than five pairs. Raises UsageError for fewer than
        two pairs."""
        if not self.paired:
            raise UsageError("Statistics are over pairs: give two or more pairs of lines, as lists.")
        found = statistics_of(self.values, self.unedited, confidence, resamples, seed)
        places = map(list, zip(*itertools.product(*self.places()[1:]), strict=True))
        return replace(found, places=dict(zip(self.over[1:], places, strict=True)))

    @typed
    def to_pandas(self, by: Literal["pair", "cell"] = "pair") -> Any:
        """Return a table with a row for each cell: its place along each axis, its token and its value. With pairs it
        has a row for each cell of each pair; `by` "cell" makes it one for each cell, with the statistics over pairs."""
        return frame_of(self.columns(by))

    @typed
    def columns(self, by: Literal["pair", "cell"] = "pair") -> dict[str, list[Any]]:
        """Return the same table as lists by column: one for each axis, `token` where positions are one, `value`, and
        `confirmed` where cells were (the mean over pairs where a row is a cell)."""
        changes = self.confirmed
        if by == "cell":
            exact = {} if changes is None else {"confirmed": changes.mean(axis=0).reshape(-1).tolist()}
            return self.statistics().columns() | exact
        cells = [dict(zip(self.over, place, strict=True)) for place in self._cells()]
        table: dict[str, list[Any]] = {axis: [cell[axis] for cell in cells] for axis in self.over}
        if "position" in self.over and all(one.texts for one in self.replies):
            table["token"] = [self.replies[cell.get("pair", 0)].texts[cell["position"]] for cell in cells]
        if self.per_pair:
            table["metric"] = [self.per_pair[cell["pair"]] for cell in cells]
        exact = {} if changes is None else {"confirmed": changes.reshape(-1).tolist()}
        return {**table, "value": self.values.reshape(-1).tolist()} | exact

    def _cells(self) -> Iterator[tuple[Any, ...]]:
        """Yield the places of each cell; aligned pairs have their own positions."""
        if not self.paired:
            yield from itertools.product(*self.places())
        for number, one in enumerate(self.replies if self.paired else ()):
            yield from itertools.product((number,), *([self.metrics] if self.several else []), *one.places)

    @typed
    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the grid with its recipe to a file, `NAME.grid.djinn`, and return its path. An existing grid of another
        recipe is kept unless `replace`. UsageError; StorageFailed.

        The file is in the safetensors format; its tensor `values` has the axes of the grid. `dj.reproduce` computes it
        again. A name that ends in .pdf, .svg, .png or .html gets the figure."""
        if is_picture(path):
            return super().save(path, replace=replace)
        target = named(path, KeptGrid)
        put(target, self.in_file(), replace=replace or self._is_made_again(target))
        return target

    def in_file(self) -> bytes:
        """Return the bytes of its file."""
        kept = KeptGrid(replies=self.replies, **{name: getattr(self, name) for name in FLAGS})
        return encoded(kept, kept.tensors(self.values.shape))

    @classmethod
    def from_file(cls, data: bytes, name: str) -> Grid:
        """Return the grid in the bytes of the file `name`. UsageError."""
        return cls._of(decoded(data, name, KeptGrid))

    @property
    def computed_by(self) -> Provenance | None:
        """The model and the machine that computed it; None where no recipe computes it again."""
        found = [one.made.by for one in self.replies if one.made is not None]
        return found[0] if self.is_whole and len(found) == len(self.replies) else None

    def _is_made_again(self, path: Path) -> bool:
        """True where the file has a grid of this one's recipe."""
        made = _made(self.replies)
        try:
            return bool(made) and path.exists() and _made(Grid.read(path).replies) == made
        except UsageError:
            return False

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """Read a grid of `save`, with the same bits. UsageError where the file is of another kind, or damaged."""
        return cls._of(read(path, KeptGrid))

    @classmethod
    def _of(cls, kept: KeptGrid) -> Grid:
        return cls(kept.replies, **{name: getattr(kept, name) for name in FLAGS})

    def __repr__(self) -> str:
        sizes = " x ".join(f"{len(at)} {axis}s" for axis, at in zip(self.over, self.places(), strict=True))
        over = f" over {sizes}" if sizes else ""
        how = self.mode if self.steps is None else "estimated"
        cells = self.replies[0].confirmed
        told = "" if cells is None else f", {len(cells.cells):,} cells computed exactly too"
        return f"Grid of {self.metric}{over}: {labelled(self.what)}, {how}{told}"

    def _shortened(self, text: str) -> str:
        """Return the view's text; for a long one the largest changes and its end, with the unedited metrics."""
        if len(text) <= SHORT:
            return text
        shown = [dict(zip(*each, strict=True)) for each in zip(self.places(), places_shown(self), strict=True)]
        of_cell = shown[self.paired :]
        largest = [
            f"{', '.join(names[at] for names, at in zip(of_cell, place, strict=True))}: {change:+.4g}"
            for *place, change in self.top()
        ]
        return shortened("\n".join([repr(self), "largest changes:", *largest, text[-TAIL:].partition("\n")[2]]))

    @property
    def what(self) -> str:
        """The edit at each cell, with its place."""
        path = f", by paths to {', '.join(self.receivers)} alone" if self.receivers else ""
        return f"{self.edit} at {self.site}{path}"


def places_shown(grid: Grid) -> tuple[list[str], ...]:
    """Return the places along each axis as a card shows them: features with their names."""
    module = grid.site.partition("[")[0]
    return tuple(
        labelled_numbers(module, places, NAME) if axis.endswith("neuron") else list(map(str, places))
        for axis, places in zip(grid.over, grid.places(), strict=True)
    )


def _made(replies: Sequence[Swept]) -> list[Recipe]:
    """Return the recipe of each reply, without earlier cells; None where one has none."""
    found = [one.made for one in replies if one.made is not None]
    asked = [msgspec.structs.replace(one.asked, calls=()) for one in found]
    same = [msgspec.structs.replace(made, asked=one, kept=0) for made, one in zip(found, asked, strict=True)]
    return same if len(same) == len(replies) else []


def _of_metric(reply: Swept, number: int) -> Swept:
    """Return a reply with one of its metrics."""
    kept = reply.confirmed
    if kept is not None:
        kept = msgspec.structs.replace(kept, changes=tuple((changes[number],) for changes in kept.changes))
    return msgspec.structs.replace(reply, measured=(reply.measured[number],), confirmed=kept)


def _confirmed_of(reply: Swept) -> list[np.ndarray[Any, Any]]:
    """Return for each metric the changes in the confirmed cells, NaN elsewhere."""
    found = []
    for number, measured in enumerate(reply.measured):
        values = np.full(measured.values.shape, np.nan)
        if reply.confirmed is not None:
            at = list(reply.confirmed.cells)
            values.reshape(-1)[at] = [changes[number] for changes in reply.confirmed.changes]
        found.append(values)
    return found


def _axes(reply: Swept) -> tuple[str, ...]:
    """Return the names of the axes; for pairs of cells, the second of each name belongs to the other cell."""
    once = reply.over[: len(reply.over) // 2] if reply.in_pairs else reply.over
    return (*once, *(f"other_{axis}" for axis in once)) if reply.in_pairs else once


def unfinished(
    places: tuple[tuple[Any, ...], ...],
    cells: Mapping[int, tuple[float, ...]],
    *,
    asked: Sweep,
    unedited: Sequence[float],
    note: str,
    several: bool = False,
    interrupted: bool = False,
    recipe: str = "",
) -> Grid:
    """Return the grid of a sweep that ended early: the finished `cells` by number, NaN for the others."""
    shape = tuple(map(len, places))
    measured = tuple(
        Measured(
            metric=metric, values=from_numpy(_so_far(shape, {at: of[number] for at, of in cells.items()})),
            corrupted=unedited[number] if asked.into == "corrupted" else np.nan,
            clean=unedited[number] if asked.into == "clean" else None, largest_difference=None, tolerance=0.0,
        )
        for number, metric in enumerate(asked.metrics)
    )  # fmt: skip
    made = Swept(
        site=asked.site, over=asked.over * (2 if asked.in_pairs else 1), places=places, texts=(), edit=UNFINISHED,
        measured=measured, mode=asked.mode, seed=asked.seed, computed=len(cells), rechecked=(), notes=(note,),
        in_pairs=asked.in_pairs, receivers=asked.receivers, into=asked.into, recipe=recipe,
    )  # fmt: skip
    return Grid([made], several=several, interrupted=interrupted)


def _so_far(shape: tuple[int, ...], cells: dict[int, float]) -> np.ndarray[Any, Any]:
    values = np.full(int(np.prod(shape)), np.nan)
    values[list(cells)] = list(cells.values())
    return values.reshape(shape)


def continued(reply: Swept) -> Continued:
    """Return the finished cells of a sweep, for another to continue."""
    values = np.stack([to_numpy(one.values).reshape(-1) for one in reply.measured], axis=-1)
    cells = np.flatnonzero(~np.isnan(values).any(axis=1)).tolist()
    return Continued(recipe=reply.recipe, cells=tuple(cells), values=tuple(map(tuple, values[cells].tolist())))


# The replies of sweeps, as a grid of many pairs keeps them.

ANY_SESSION: Final = "sweep"
AT_ITS_END: Final = "The sweep is whole; it was interrupted at its end."


def grid_of(outcome: SpreadResults[Swept], pairs: int, *, several: bool, met: int | None = None) -> Grid:
    """Return the grid of swept pairs. An interrupt leaves those before the first missing one; the pair that it `met`
    may have a part. Raises SweepEnded, with these, where a pair failed or no engine is left."""
    found, error = list[Swept](), outcome.error
    try:
        for reply in outcome.first:
            require_shape(reply, found)
            found.append(reply)
    except UsageError as unlike:
        error = unlike
    if error is not None and not isinstance(error, DjinnError):
        raise error
    at = len(found)
    if isinstance(error, SweepEnded) and isinstance(error.grid, Grid) and outcome.failed == at:
        found += error.grid.replies
    if not found:
        raise error or KeyboardInterrupt
    missing = pairs - len(found)
    for note in _notes(found, () if missing else outcome.lost):
        found[-1] = noted(found[-1], note)
    if outcome.interrupted and missing:
        found[-1] = noted(
            found[-1], f"The sweep is not whole: it was interrupted in pair {at if met is None else met}."
        )
    grid = Grid(found, paired=True, several=several, interrupted=outcome.interrupted, missing=missing)
    if error is not None:
        raise SweepEnded(f"The sweep ended in pair {at}: {error}", grid) from error
    return grid


def _notes(found: Sequence[Swept], lost: Sequence[str]) -> list[str]:
    """Return the notes on pairs that several engines computed, some of them lost."""
    made = [one.made.by for one in found if one.made is not None]
    other = dict.fromkeys(
        f"{name} ({here}, {there})" for by in made[1:] for name, here, there in differences(made[0], by)
    )
    notes = (
        [f"Its pairs were computed by engines that differ in {', '.join(other)}, and so in last bits."] if other else []
    )
    return [*notes, *(f"An engine was lost, and another computed its pair: {why}" for why in lost)]


def nameless(reply: Swept) -> Swept:
    """Return a reply without the name of its session, which is free again."""
    if reply.made is None:
        return reply
    asked = msgspec.structs.replace(reply.made.asked, session=ANY_SESSION)
    return msgspec.structs.replace(reply, made=msgspec.structs.replace(reply.made, asked=asked))


def without_end(reply: Swept) -> Swept:
    """Return a pair without the note on its end, where other pairs follow."""
    return msgspec.structs.replace(reply, notes=tuple(note for note in reply.notes if note != AT_ITS_END))


def noted(reply: Swept, note: str) -> Swept:
    return msgspec.structs.replace(reply, notes=(*reply.notes, note))


def require_shape(reply: Swept, before: Sequence[Swept]) -> None:
    shape = reply.measured[0].values.shape
    if before and shape != before[0].measured[0].values.shape:
        raise UsageError(
            f"its cells are {list(shape)}, and the first pair's {list(before[0].measured[0].values.shape)}; "
            "pairs swept over positions need equally many tokens, or equally many positions that align names."
        )
