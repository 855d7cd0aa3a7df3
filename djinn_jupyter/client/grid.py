"""The result of a sweep: numbers by cell, how they were made, and how exact they are. Asks nothing of an engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from djinn_jupyter.client.arrays import from_numpy, to_numpy
from djinn_jupyter.client.pair_statistics import PairStatistics, statistics_of
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.replies import Swept

if TYPE_CHECKING:
    import numpy as np

ENDING: Final = ".grid.djinn"
RECIPE: Final = ("site", "over", "metric", "edit", "mode", "seed")


class Grid:
    """`values` is float64 with one axis for each of `over`; with `paired`, a first axis counts the pairs. Cells that
    were not reached are NaN. `replies` holds the sweep of each pair."""

    def __init__(self, replies: Sequence[Swept], *, paired: bool = False) -> None:
        import numpy as np

        self.replies, self.paired = tuple(replies), paired
        first = self.replies[0]
        self.site, self.metric, self.edit, self.seed = first.site, first.metric, first.edit, first.seed
        self.layers, self.positions, self.heads = first.layers, first.positions, first.heads
        self.coefs = first.coefs
        self.over: tuple[str, ...] = ("pair", *first.over) if paired else first.over
        self.mode = "fast" if any(one.mode == "fast" for one in self.replies) else "exact"
        each = [to_numpy(one.values) for one in self.replies]
        self.values: np.ndarray[Any, Any] = np.stack(each) if paired else each[0]

    @property
    def texts(self) -> tuple[str, ...]:
        """The tokens of the corrupted line, of the first pair where there are several."""
        return self.replies[0].texts

    @property
    def corrupted(self) -> Any:
        """The metric of the corrupted line without an edit; an array with an entry for each pair."""
        return self._of_each([one.corrupted for one in self.replies])

    @property
    def clean(self) -> Any:
        """The metric of the clean line; None where there was none."""
        found = [one.clean for one in self.replies]
        return None if None in found else self._of_each(found)

    def _of_each(self, found: Sequence[Any]) -> Any:
        import numpy as np

        return np.array(found, dtype=np.float64) if self.paired else found[0]

    @property
    def computed(self) -> int:
        """Cells that were computed; in the others the edit changes no bit."""
        return sum(one.computed for one in self.replies)

    @property
    def largest_difference(self) -> float | None:
        """The largest difference between cells computed together and the same computed alone, of those that were
        rechecked. None where each was computed alone."""
        found = [one.largest_difference for one in self.replies if one.largest_difference is not None]
        return max(found, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for one in self.replies for note in one.notes))

    @property
    def recipe(self) -> dict[str, Any]:
        """How the grid was made."""
        return {name: getattr(self.replies[0], name) for name in RECIPE} | {"texts": [r.texts for r in self.replies]}

    def places(self) -> tuple[tuple[Any, ...], ...]:
        """Return the places along each axis."""
        named: dict[str, tuple[Any, ...]] = {
            "pair": tuple(range(len(self.replies))),
            "layer": self.layers,
            "position": self.positions,
            "head": self.heads,
            "coef": self.coefs,
        }
        return tuple(named[axis] for axis in self.over)

    def statistics(self, *, confidence: float = 0.95, resamples: int = 9999, seed: int = 0) -> PairStatistics:
        """Return what the pairs say of each cell: mean, standard error, bootstrap interval and p-value of the change
        from the corrupted lines. Raises UsageError where there are fewer than two pairs."""
        if not self.paired:
            raise UsageError("Statistics are over pairs: give two or more pairs of lines, as lists.")
        return statistics_of(self.values, self.corrupted, confidence, resamples, seed)

    def to_pandas(self, by: Literal["pair", "cell"] = "pair") -> Any:
        """Return a table with a row for each cell: its place along each axis, its token and its value. With pairs it
        has a row for each cell of each pair; `by` "cell" makes it one for each cell, with the statistics over pairs."""
        try:
            frame = import_module("pandas").DataFrame  # only where the user has it: no dependency
        except ImportError:
            raise MissingDependency("to_pandas needs pandas: pip install pandas.") from None
        return frame(self.columns(by))

    def columns(self, by: Literal["pair", "cell"] = "pair") -> dict[str, list[Any]]:
        """Return the same table as lists by column: one for each axis, `token` where positions are one, `value`."""
        if by == "cell":
            places = zip(*itertools.product(*self.places()[1:]), strict=True)
            statistics = self.statistics().columns()
            return {axis: list(at) for axis, at in zip(self.over[1:], places, strict=True)} | statistics
        cells = [dict(zip(self.over, place, strict=True)) for place in itertools.product(*self.places())]
        table: dict[str, list[Any]] = {axis: [cell[axis] for cell in cells] for axis in self.over}
        if "position" in self.over and all(one.texts for one in self.replies):
            table["token"] = [self.replies[cell.get("pair", 0)].texts[cell["position"]] for cell in cells]
        return {**table, "value": self.values.reshape(-1).tolist()}

    def save(self, path: str | Path) -> Path:
        """Write the grid with its recipe to a file, `NAME.grid.djinn`. Return its path."""
        target = Path(path)
        if not target.name.endswith(ENDING):
            raise UsageError(f"A grid is kept in a file that ends in {ENDING}; {target.name} does not.")
        kept = [{**msgspec.structs.asdict(one), "values": bytes(one.values.data)} for one in self.replies]
        target.write_bytes(msgspec.msgpack.encode({"paired": self.paired, "replies": kept}))
        return target

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """Return the grid that `save` wrote."""
        try:
            kept = msgspec.msgpack.decode(Path(path).read_bytes())
            return cls([_reply(fields) for fields in kept["replies"]], paired=kept["paired"])
        except (msgspec.DecodeError, KeyError, TypeError, IndexError):
            raise UsageError(f"{Path(path).name} is no grid of a sweep.") from None

    def __repr__(self) -> str:
        sizes = " x ".join(f"{len(at)} {axis}s" for axis, at in zip(self.over, self.places(), strict=True))
        return f"Grid of {self.metric} over {sizes}: {self.edit} at {self.site}, {self.mode}"


def _reply(fields: dict[str, Any]) -> Swept:
    named = {"layer": "layers", "position": "positions", "head": "heads", "coef": "coefs"}
    shape = tuple(len(fields[named[axis]]) for axis in fields["over"])
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Swept(**{**fields, **lists, "values": Array(dtype="float64", shape=shape, data=fields["values"])})


def unfinished(
    shape: tuple[int, ...],
    cells: dict[int, float],
    *,
    corrupted: float,
    site: str,
    over: Sequence[Any],
    metric: str,
    mode: Mode,
    seed: int,
    note: str,
    coefs: tuple[float, ...] = (),
) -> Grid:
    """Return the grid of a sweep that ended early: the finished `cells` by number, NaN for the others."""
    import numpy as np

    values = np.full(int(np.prod(shape)), np.nan)
    for number, value in cells.items():
        values[number] = value
    places: dict[str, tuple[int, ...]] = {axis: tuple(range(n)) for axis, n in zip(over, shape, strict=True)}
    made = Swept(
        site=site, over=tuple(over), layers=places.get("layer", ()), positions=places.get("position", ()),
        heads=places.get("head", ()), texts=(), metric=metric, edit="unfinished", corrupted=corrupted, clean=None,
        values=from_numpy(values.reshape(shape)), mode=mode, seed=seed, computed=len(cells), rechecked=(),
        largest_difference=None, tolerance=0.0, notes=(note,), coefs=coefs,
    )  # fmt: skip
    return Grid([made])
