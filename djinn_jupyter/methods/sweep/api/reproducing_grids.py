"""A grid computed again from its recipe, in this engine or another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.interrupts import WorkInterrupted
from djinn_jupyter.client.reproduction import Reproduction, bits, compared, naming_models
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.confirming import confirmed_again
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.sweeping import OnProgress, swept_again
from djinn_jupyter.methods.sweep.request import Recipe

if TYPE_CHECKING:
    import numpy as np


def reproduced_grid(engine: RemoteEngine, kept: Grid, on_progress: OnProgress | None) -> Reproduction:
    """Compute a grid again, and compare. UsageError for one that was cut short; errors as of `dj.sweep`;
    WorkInterrupted."""
    made = _made(kept)
    with naming_models("grid", made[0].by, engine.description, refused="compute"):
        again = confirmed_again(engine, swept_again(engine, made, kept, on_progress), kept, on_progress)
    if not again.is_whole or again.interrupted:
        raise WorkInterrupted("The reproduction was interrupted, and nothing is known of the cells that follow.", again)
    return compared_grids(kept, again)


def _made(grid: Grid) -> list[Recipe]:
    """Return how each pair was made. Raises UsageError where one is not whole."""
    found = [one.made for one in grid.replies if one.made is not None]
    if not grid.is_whole or len(found) < len(grid.replies):
        raise UsageError(
            "This grid is not whole, so it cannot be computed again as it was; finish it first, with so_far=grid."
        )
    return found


def compared_grids(kept: Grid, again: Grid) -> Reproduction:
    """Return what differs between a grid and the same computed again."""
    if kept.values.shape != again.values.shape:
        raise UsageError(
            f"The grid has {' x '.join(map(str, kept.values.shape))} cells, and computed again "
            f"{' x '.join(map(str, again.values.shape))}: the model has other layers, heads or neurons."
        )
    return compared(
        kept,
        again,
        lambda at: {axis: along[index] for axis, along, index in zip(kept.over, kept.places(), at, strict=True)},
        origins=(_made(kept)[0].by, _made(again)[0].by),
        notes=partial(_notes, kept, again),
        differs=_differs(kept, again),
    )


def _differs(kept: Grid, again: Grid) -> str:
    """Return what has other bits besides the values; nothing where all has the same."""
    import numpy as np

    if not _same_confirmed(kept, again):
        return "the cells that were computed exactly"
    same = all(np.array_equal(bits(_lines(kept, of)), bits(_lines(again, of))) for of in ("corrupted", "clean"))
    return "" if same else "the metrics of the unedited lines"


def _same_confirmed(kept: Grid, again: Grid) -> bool:
    """True where the cells of an attribution that were computed exactly have the same bits, or there are none."""
    import numpy as np

    one, other = kept.confirmed, again.confirmed
    if one is None or other is None:
        return one is other
    return np.array_equal(bits(one), bits(other))


def _lines(grid: Grid, of: str) -> np.ndarray[Any, Any]:
    """Return the metrics of an unedited line, NaN where there is none."""
    import numpy as np

    found = [getattr(measured, of) for reply in grid.replies for measured in reply.measured]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _notes(kept: Grid, again: Grid, same: bool) -> list[str]:
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
