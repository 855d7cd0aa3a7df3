"""The result of a sweep: numbers by cell, how they were made, and how exact they are. Asks nothing of an engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import from_numpy, largest, to_numpy
from djinn_jupyter.client.displayed import SHORT, TAIL, Displayed, shortened
from djinn_jupyter.client.frames import frame_of
from djinn_jupyter.client.reproduction import Reproducible
from djinn_jupyter.client.result import STRONGEST
from djinn_jupyter.client.result_files import encoded, named, put, read
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.grid_files import KeptGrid
from djinn_jupyter.methods.sweep.api.pair_metrics import PerPair, spelled
from djinn_jupyter.methods.sweep.api.pair_statistics import PairStatistics, statistics_of
from djinn_jupyter.methods.sweep.request import Continued, Measured, Recipe, Sweep, Swept

if TYPE_CHECKING:
    import numpy as np

UNFINISHED: Final = "unfinished"  # the edit of a sweep that ended before its last cell
FLAGS: Final = ("paired", "several", "interrupted", "missing")
RECIPE: Final = ("site", "over", "edit", "windows", "in_pairs", "receivers", "into", "mode", "seed")


class Grid(Displayed, Reproducible):
    """`values` is float64 with one axis for each of `over`; with `paired`, a first axis counts the pairs, and with
    `several` metrics the next axis counts them; `per_pair` has the metrics of pairs that have one each. Cells that were
    not reached are NaN. `replies` holds the sweep of each pair, of which `missing` ones were not reached. `interrupted`
    is True where an interrupt ended the sweep. `steps` is the number of gradients of an attribution, whose values are
    changes of the metric, and with the correction "cancellation" their sizes; None of a sweep."""

    _view = "grid_view"
    ending = KeptGrid.ending
    reproduced_by = "djinn_jupyter.methods.sweep.api.reproducing_grids:reproduced_grid"

    def __init__(
        self,
        replies: Sequence[Swept],
        *,
        paired: bool = False,
        several: bool = False,
        interrupted: bool = False,
        missing: int = 0,
    ) -> None:
        import numpy as np

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

    def along(self, axis: str) -> tuple[Any, ...]:
        """Return the places along an axis, of the first pair where pairs differ; none where it is no axis."""
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
        """The metric; several are joined by commas, and of those that belong to a pair each it is the first."""
        return spelled(self.per_pair) if self.per_pair else ", ".join(self.metrics)

    @property
    def is_whole(self) -> bool:
        """False where the sweep was cut short; `dj.sweep(..., so_far=grid)` goes on with it."""
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
        """The tokens of the edited line, of the first pair where there are several."""
        return self.replies[0].texts

    @property
    def corrupted(self) -> Any:
        """The metric of the corrupted line without an edit; an array with an entry for each pair, and each metric."""
        return self._numbers([[measured.corrupted for measured in one.measured] for one in self.replies])

    @property
    def clean(self) -> Any:
        """The metric of the clean line; None where there was none."""
        found = [[measured.clean for measured in one.measured] for one in self.replies]
        return None if any(None in of_a_pair for of_a_pair in found) else self._numbers(found)

    @property
    def unedited(self) -> Any:
        """The metric of the line that was edited, without an edit: what the cells are compared with. It is 0 of an
        attribution, whose cells are changes."""
        if self.steps is not None:
            return self._numbers([[0.0] * len(one.measured) for one in self.replies])
        return self.clean if self.into == "clean" else self.corrupted

    @property
    def confirmed(self) -> Any:
        """The changes of the metric that an exact sweep found in the strongest cells of an attribution, in the shape of
        `values`, NaN elsewhere; None where no cell was confirmed."""
        import numpy as np

        if all(one.confirmed is None for one in self.replies):
            return None
        found = [_confirmed_of(one) for one in self.replies]
        return np.array(self._of_each(found), dtype=np.float64)

    @property
    def are_sizes(self) -> bool:
        """True where the values are sizes of changes, which have no sign."""
        return "cancellation" in self.corrections

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation of the scores and the changes (or their sizes, where scores are) of all cells
        confirmed; None where fewer than two were, or all are equal. Of several metrics ask one, as
        `grid.of("...").correlation`. Raises UsageError."""
        import numpy as np

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
        """Return the values by pair and metric, without an axis that this grid does not have."""
        by_pair = found if self.several else [one[0] for one in found]
        return by_pair if self.paired else by_pair[0]

    def _numbers(self, found: Sequence[Sequence[Any]]) -> Any:
        import numpy as np

        kept = self._of_each(found)
        return np.array(kept, dtype=np.float64) if self.paired or self.several else kept

    @property
    def computed(self) -> int:
        """Cells that were computed; in the others the edit changes no bit."""
        return sum(one.computed for one in self.replies)

    @property
    def largest_difference(self) -> float | None:
        """The largest difference between cells computed together and the same computed alone, of those that were
        rechecked. None where each was computed alone."""
        each = [measured.largest_difference for one in self.replies for measured in one.measured]
        return max((found for found in each if found is not None), default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader should know about the computation of the cells."""
        return tuple(dict.fromkeys(note for one in self.replies for note in one.notes))

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the grid: the arguments of `dj.sweep`, and the tokens of each line; of a whole grid the ids of
        all `lines`, and the `provenance` too."""
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
        """Return the `count` cells that change the metric most, by size, the largest first: each with its place along
        the axes, and the change from `unedited`; of pairs the mean over them, of cells that all have. UsageError."""
        import numpy as np

        own = np.reshape(self.unedited, (*np.shape(self.unedited), *[1] * (self.values.ndim - np.ndim(self.unedited))))
        changes = self.values - own
        places = self.places()[self.paired :]
        found = largest(changes.mean(axis=0) if self.paired else changes, count)
        return [(*(of[at] for of, at in zip(places, cell, strict=True)), change) for cell, change in found]

    def statistics(self, *, confidence: float = 0.95, resamples: int = 9999, seed: int = 0) -> PairStatistics:
        """Return the statistics of each cell over the pairs: mean, standard error, bootstrap interval and p-value of
        the change from the unedited lines; no interval of fewer than five pairs. Raises UsageError where there are
        fewer than two pairs."""
        if not self.paired:
            raise UsageError("Statistics are over pairs: give two or more pairs of lines, as lists.")
        return statistics_of(self.values, self.unedited, confidence, resamples, seed)

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
            places = zip(*itertools.product(*self.places()[1:]), strict=True)
            statistics = self.statistics().columns()
            exact = {} if changes is None else {"confirmed": changes.mean(axis=0).reshape(-1).tolist()}
            return {axis: list(at) for axis, at in zip(self.over[1:], places, strict=True)} | statistics | exact
        cells = [dict(zip(self.over, place, strict=True)) for place in self._cells()]
        table: dict[str, list[Any]] = {axis: [cell[axis] for cell in cells] for axis in self.over}
        if "position" in self.over and all(one.texts for one in self.replies):
            table["token"] = [self.replies[cell.get("pair", 0)].texts[cell["position"]] for cell in cells]
        if self.per_pair:
            table["metric"] = [self.per_pair[cell["pair"]] for cell in cells]
        exact = {} if changes is None else {"confirmed": changes.reshape(-1).tolist()}
        return {**table, "value": self.values.reshape(-1).tolist()} | exact

    def _cells(self) -> Iterator[tuple[Any, ...]]:
        """Yield the places of each cell; aligned pairs have positions of their own."""
        if not self.paired:
            yield from itertools.product(*self.places())
        for number, one in enumerate(self.replies if self.paired else ()):
            yield from itertools.product((number,), *([self.metrics] if self.several else []), *one.places)

    @typed
    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the grid with its recipe to a file, `NAME.grid.djinn`, and return its path. A grid of another recipe
        that is there is kept unless `replace`. UsageError; StorageFailed.

        The file is one of safetensors, whose tensor `values` has the axes of the grid; `dj.reproduce` computes it
        again."""
        target = named(path, KeptGrid)
        kept = KeptGrid(replies=self.replies, **{name: getattr(self, name) for name in FLAGS})
        put(target, encoded(kept, kept.tensors(self.values.shape)), replace=replace or self._is_made_again(target))
        return target

    def _is_made_again(self, path: Path) -> bool:
        """True where the file has a grid that was made by this one's recipe."""
        made = _made(self.replies)
        try:
            return bool(made) and path.exists() and _made(Grid.read(path).replies) == made
        except UsageError:
            return False

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """Return the grid that `save` wrote, with the same bits. UsageError where the file is none, or damaged."""
        kept = read(path, KeptGrid)
        return cls(kept.replies, **{name: getattr(kept, name) for name in FLAGS})

    def __repr__(self) -> str:
        sizes = " x ".join(f"{len(at)} {axis}s" for axis, at in zip(self.over, self.places(), strict=True))
        over = f" over {sizes}" if sizes else ""
        how = self.mode if self.steps is None else "estimated"
        cells = self.replies[0].confirmed
        told = "" if cells is None else f", {len(cells.cells):,} cells computed exactly too"
        return f"Grid of {self.metric}{over}: {self.what}, {how}{told}"

    def _shortened(self, text: str) -> str:
        """Return the view's text; of a long one the largest changes and its end, with the unedited metrics."""
        if len(text) <= SHORT:
            return text
        largest = [f"{', '.join(map(str, place))}: {change:+.4g}" for *place, change in self.top()]
        return shortened("\n".join([repr(self), "largest changes:", *largest, text[-TAIL:].partition("\n")[2]]))

    @property
    def what(self) -> str:
        """The edit made at each cell, with its place."""
        path = f", by paths to {', '.join(self.receivers)} alone" if self.receivers else ""
        return f"{self.edit} at {self.site}{path}"


def _made(replies: Sequence[Swept]) -> list[Recipe]:
    """Return the recipe of each reply, whatever was computed before; none where one has none."""
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
    """Return for each metric the changes in the cells confirmed, NaN elsewhere."""
    import numpy as np

    found = []
    for number, measured in enumerate(reply.measured):
        values = np.full(measured.values.shape, np.nan)
        if reply.confirmed is not None:
            at = list(reply.confirmed.cells)
            values.reshape(-1)[at] = [changes[number] for changes in reply.confirmed.changes]
        found.append(values)
    return found


def _axes(reply: Swept) -> tuple[str, ...]:
    """Return the names of the axes; of pairs of cells, the second of each name is that of the other cell."""
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
    import numpy as np

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
    import numpy as np

    values = np.full(int(np.prod(shape)), np.nan)
    values[list(cells)] = list(cells.values())
    return values.reshape(shape)


def continued(reply: Swept) -> Continued:
    """Return the cells of a sweep that are finished, for another to go on from them."""
    import numpy as np

    values = np.stack([to_numpy(one.values).reshape(-1) for one in reply.measured], axis=-1)
    cells = np.flatnonzero(~np.isnan(values).any(axis=1)).tolist()
    return Continued(recipe=reply.recipe, cells=tuple(cells), values=tuple(map(tuple, values[cells].tolist())))
