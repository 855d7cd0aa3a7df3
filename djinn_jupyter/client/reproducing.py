"""`dj.reproduce`: a grid is computed again from its recipe, here or in another engine, and compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.confirming import confirmed_again
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.grid import Grid
from djinn_jupyter.client.interrupts import WorkInterrupted, interruptible
from djinn_jupyter.client.sweeping import OnProgress, swept_again
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.sweeps import Recipe

if TYPE_CHECKING:
    import numpy as np

DIGESTS: Final = ("configuration", "weights")
LED_TO: Final = (
    "architecture", *DIGESTS, "dtype", "attention", "device", "processor", "threads", "torch", "transformers", "djinn",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A grid and the same `again`. `same` is True where they have the same bits: all values, and the metrics of the
    unedited lines. `different` counts the values that have others, of which the one at `place` (by axis) differs most,
    by `largest_difference`; NaN on one side alone counts as infinite. `origin` has what differs between the models and
    machines: (name, then, now). `notes` are sentences on what else does."""

    grid: Grid
    again: Grid
    same: bool
    different: int
    largest_difference: float
    place: dict[str, Any]
    origin: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return what was found, a sentence a line."""
        differs = [f"{name}: {then} then, {now} now" for name, then, now in self.origin]
        return [self._verdict(), *self.notes, *differs]

    def _verdict(self) -> str:
        count = self.grid.values.size
        if self.same:
            return f"The same bits: {count:,} values of {self.grid!r}."
        if not self.different:
            confirmed = _same_confirmed(self.grid, self.again)
            others = "the metrics of the unedited lines" if confirmed else "the cells that were computed exactly"
            return f"Other bits: the {count:,} values are the same, and {others} are not."
        at = ", ".join(f"{axis} {place}" for axis, place in self.place.items())
        where = f", most at {at}" if at else ""
        return (
            f"Other bits: {self.different:,} of {count:,} values differ, by up to {self.largest_difference:.3g}{where}."
        )

    def __repr__(self) -> str:
        return "\n".join(self.lines())


@typed
def reproduce(engine: RemoteEngine, grid: Grid | str | Path, *, on_progress: OnProgress | None = None) -> Reproduction:
    """Compute a grid again (of `dj.sweep`, `dj.path` or `dj.attribute`; or its file), by its recipe alone, and compare
    the two bit for bit. The engine may be another one, of another day.

    In mode "exact" the same model on the same kind of machine gives the same bits. In "fast" the same
    cells share each pass as then, unless a pass takes too long here or finds less memory; where they do not, bits may
    differ by rounding, and the notes say so.
    UsageError for a grid that was cut short; errors as of `dj.sweep`; WorkInterrupted.

    >>> grid = dj.sweep(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     site="z.*[*]",
    ...     metric="logit(' Paris')",
    ...     mode="exact",
    ... )
    >>> dj.reproduce(engine, grid).same
    True
    """
    kept = grid if isinstance(grid, Grid) else Grid.read(grid)
    made = _made(kept)
    with interruptible("The reproduction"):
        again = _computed(engine, kept, made, on_progress)
    if not again.is_whole or again.interrupted:
        raise WorkInterrupted("The reproduction was interrupted, and nothing is known of the cells that follow.", again)
    return compared(kept, again)


def _made(grid: Grid) -> list[Recipe]:
    """Return how each pair was made. Raises UsageError where one is not whole."""
    found = [one.made for one in grid.replies if one.made is not None]
    if not grid.is_whole or len(found) < len(grid.replies):
        raise UsageError(
            "This grid is not whole, so it cannot be computed again as it was; finish it first, with so_far=grid."
        )
    return found


def _computed(engine: RemoteEngine, kept: Grid, made: list[Recipe], on_progress: OnProgress | None) -> Grid:
    """Return the grid anew. An error says which other model the grid is of, where this engine serves another."""
    try:
        return confirmed_again(engine, swept_again(engine, made, kept, on_progress), kept, on_progress)
    except DjinnError as error:
        before, here = made[0].by, engine.description
        if before.architecture == here.architecture and before.model == here.name:
            raise
        raise UsageError(
            f"The grid is of {before.model} ({before.architecture}), and this engine serves {here.name} "
            f"({here.architecture}), which cannot compute it: {error}"
        ) from error


def compared(kept: Grid, again: Grid) -> Reproduction:
    """Return what differs between a grid and the same computed again."""
    import numpy as np

    if kept.values.shape != again.values.shape:
        raise UsageError(
            f"The grid has {' x '.join(map(str, kept.values.shape))} cells, and computed again "
            f"{' x '.join(map(str, again.values.shape))}: the model has other layers, heads or neurons."
        )
    other = _bits(kept.values) != _bits(again.values)
    place, most = dict[str, Any](), 0.0
    if other.any():
        differences = _differences(kept.values, again.values)
        at = np.unravel_index(int(np.argmax(np.where(other, differences, -1))), other.shape)
        most = float(differences[at])
        place = {axis: along[index] for axis, along, index in zip(kept.over, kept.places(), at, strict=True)}
    lines = _same_confirmed(kept, again) and all(
        np.array_equal(_bits(_lines(kept, of)), _bits(_lines(again, of))) for of in ("corrupted", "clean")
    )
    return Reproduction(
        grid=kept,
        again=again,
        same=lines and not other.any(),
        different=int(other.sum()),
        largest_difference=most,
        place=place,
        origin=_origin(_made(kept)[0].by, _made(again)[0].by),
        notes=tuple(_notes(kept, again, same=lines and not other.any())),
    )


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.view("int64")


def _same_confirmed(kept: Grid, again: Grid) -> bool:
    """True where the cells of an attribution that were computed exactly have the same bits, or there are none."""
    import numpy as np

    one, other = kept.confirmed, again.confirmed
    if one is None or other is None:
        return one is other
    return np.array_equal(_bits(one), _bits(other))


def _lines(grid: Grid, of: str) -> np.ndarray[Any, Any]:
    """Return the metrics of an unedited line, NaN where there is none."""
    import numpy as np

    found = [getattr(measured, of) for reply in grid.replies for measured in reply.measured]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _differences(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(invalid="ignore"):
        found = np.abs(one - other)
    return np.where(np.isnan(found), np.where(np.isnan(one) & np.isnan(other), 0.0, np.inf), found)


def _origin(then: Provenance, now: Provenance) -> tuple[tuple[str, str, str], ...]:
    """Return what differs of all that bits follow from; a model's name is no such thing."""
    named = ((name, str(getattr(then, name)), str(getattr(now, name))) for name in LED_TO)
    found = [(name, before, here) for name, before, here in named if before != here]
    if any(name in DIGESTS for name, _, _ in found):
        found.insert(0, ("model", then.model, now.model))
    return tuple(found)


def _notes(kept: Grid, again: Grid, *, same: bool) -> list[str]:
    notes = []
    if kept.texts != again.texts:
        notes.append("The tokens have other texts: the tokenizer is another one.")
    if kept.mode != again.mode:
        notes.append(f"The mode was {kept.mode}, and is {again.mode} now.")
    before = sum(one.kept for one in _made(kept))
    if before and not same:
        notes.append(f"{before:,} of its cells came from a sweep that was cut short, and shared passes with others.")
    if not same and [one.asked.calls for one in _made(kept)] != [one.asked.calls for one in _made(again)]:
        notes.append(
            "Other cells shared a pass than then, for passes took longer or found less memory: the last bits of fast "
            'cells may differ by that, those of mode="exact" may not.'
        )
    return notes
