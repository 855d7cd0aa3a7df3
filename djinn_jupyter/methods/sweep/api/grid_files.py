"""The content of a grid's file: the replies of its sweeps, and how they make one grid. A grid is no `Result`: it is
kept without a recipe too, of all its replies as one tensor, and computed again by sweeps that tell how far they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from djinn_jupyter.client.result_files import FileContent, Tensors
from djinn_jupyter.methods.sweep.request import Swept


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
    """Return whether the cells confirmed are cells of the reply, each with a change for each metric."""
    kept, count = reply.confirmed, math.prod(map(len, reply.places))
    if kept is None:
        return True
    fits = len(kept.cells) == len(kept.changes) and all(len(row) == len(reply.measured) for row in kept.changes)
    return fits and all(0 <= cell < count for cell in kept.cells)


def _has_lines(reply: Swept) -> bool:
    """Return whether the recipe has its lines' tokens: the name of a session would be that of a reader's own."""
    asked = None if reply.made is None else reply.made.asked
    return asked is None or not any(isinstance(line, str) for line in (asked.corrupted, asked.clean))


def _has_texts(reply: Swept) -> bool:
    """Return whether each position has a token's text; an unfinished sweep has no texts at all."""
    along = [
        place for axis, places in zip(reply.over, reply.places, strict=True) if axis == "position" for place in places
    ]
    return not reply.texts or all(isinstance(at, int) and 0 <= at < len(reply.texts) for at in along)
