"""The strongest cells of an attribution, computed by an exact sweep too: which they are, and the two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, SweepEnded, UsageError
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.sweeping import OnProgress, swept_again
from djinn_jupyter.methods.sweep.request import MOST_CHOSEN, Confirmed, Recipe, Swept

if TYPE_CHECKING:
    import numpy as np

UNCONFIRMED: Final = "The estimates are whole; the exact sweep ended before the last cell that it was to confirm."


def require_confirmable(top: int | None, clean: object, edit: object) -> None:
    """Raise UsageError for a number of cells that no sweep confirms."""
    if top is not None and not 1 <= top <= MOST_CHOSEN:
        raise UsageError(f"From 1 to {MOST_CHOSEN:,} of the strongest cells are computed exactly, not {top:,}.")
    if top is not None and clean is None and edit is None:
        raise UsageError(
            "Gradient x activation is the estimate of no sweep, so none confirms it: give a clean line, or an edit "
            "such as dj.zero()."
        )


def strongest(scores: Grid, count: int) -> tuple[int, ...]:
    """Return the cells with the largest scores by size, of each metric as many, numbered row by row; of pairs those of
    the largest mean."""
    import numpy as np

    mean = scores.values.mean(axis=0) if scores.paired else scores.values
    each = np.abs(mean).reshape(len(scores.metrics), -1)
    if scores.in_pairs:  # a pair of cells once
        each = np.where(np.tri(int(each.shape[1] ** 0.5), k=-1, dtype=bool).reshape(1, -1), -1.0, each)
    found = np.argsort(-each, axis=1, kind="stable")[:, :count]
    return tuple(sorted({int(cell) for metric, cells in enumerate(found) for cell in cells if each[metric, cell] >= 0}))


def confirmed(
    engine: RemoteEngine,
    scores: Grid,
    cells: tuple[int, ...],
    on_progress: OnProgress | None = None,
    beside: Sequence[RemoteEngine] = (),
) -> Grid:
    """Return an attribution with these cells computed by an exact sweep of the same lines, edit and metrics. An
    interrupt keeps what was computed. Raises SweepEnded, which has the scores, where the sweep fails."""
    made = [_exact(one.made, cells) for one in scores.replies if one.made is not None]
    try:
        exact = swept_again(engine, made, scores, on_progress, beside)
    except DjinnError as error:
        part = error.grid.replies if isinstance(error, SweepEnded) and isinstance(error.grid, Grid) else ()
        said = f"The attribution is whole, and the sweep that was to confirm it ended: {error}"
        raise SweepEnded(said, _beside(scores, part, cells, interrupted=True)) from error
    except KeyboardInterrupt:
        return _beside(scores, (), cells, interrupted=True)
    return _beside(scores, exact.replies, cells, interrupted=exact.interrupted)


def confirmed_again(engine: RemoteEngine, again: Grid, before: Grid, on_progress: OnProgress | None) -> Grid:
    """Return a grid that was computed again with those cells confirmed that were before."""
    kept = before.replies[0].confirmed
    if kept is None or again.interrupted or not again.is_whole:
        return again
    return confirmed(engine, again, kept.cells, on_progress)


def _exact(made: Recipe, cells: tuple[int, ...]) -> Recipe:
    asked = msgspec.structs.replace(made.asked, estimate=None, mode="exact", chosen=cells)
    return msgspec.structs.replace(made, asked=asked)


def _beside(scores: Grid, exact: Sequence[Swept], cells: tuple[int, ...], *, interrupted: bool) -> Grid:
    each = [_with(one, exact[at] if at < len(exact) else None, cells) for at, one in enumerate(scores.replies)]
    if interrupted:
        each[-1] = msgspec.structs.replace(each[-1], notes=(*each[-1].notes, UNCONFIRMED))
    return Grid(each, paired=scores.paired, several=scores.several, interrupted=interrupted)


def _with(scores: Swept, exact: Swept | None, cells: tuple[int, ...]) -> Swept:
    """Return scores with the changes that an exact sweep found in these cells, and with what it noted."""
    import numpy as np

    if exact is None:
        return scores
    each = [to_numpy(one.values).reshape(-1)[list(cells)] - one.corrupted for one in exact.measured]
    changes: np.ndarray[Any, Any] = np.stack(each, axis=-1)
    there = [(cell, tuple(row)) for cell, row in zip(cells, changes.tolist(), strict=True) if not np.isnan(row).any()]
    kept = Confirmed(cells=tuple(cell for cell, _ in there), changes=tuple(row for _, row in there))
    notes = tuple(dict.fromkeys((*scores.notes, *exact.notes)))
    return msgspec.structs.replace(scores, confirmed=kept, notes=notes)
