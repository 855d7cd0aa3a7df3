"""The value put at a cell of a sweep: the clean line's, an edit of the line's own, or one made of a whole line."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.methods.sweep.engine.places import Spot
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample, SweptEdit
from djinn_jupyter.wire.edits import PatchFrom, require_coefficient, with_coefficient


def check(edit: SweptEdit, width: int, *, coefs: bool) -> None:
    """Raise InvalidEdit or UsageError for an edit that a sweep cannot make."""
    if isinstance(edit, PatchFrom):
        raise InvalidEdit("A sweep patches from its clean line: give that, and no edit.")
    if coefs:
        require_coefficient(edit, "A sweep over coef")
    if not isinstance(edit, Mean | Resample):
        edit_kinds.check(edit, width)


def reads_a_line(edit: SweptEdit | None) -> bool:
    """Return whether an edit puts values of the clean line in place."""
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
    """Return the part that a spot gets: `value` is the pass's there, at all positions, `source` that of the clean line,
    of the unedited line where there is none."""
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
    """Return another position for each of so many, drawn by the seed: one round through all in a random order."""
    order = random.Random(seed).sample(range(count), count)
    following = dict(zip(order, [*order[1:], *order[:1]], strict=True))
    return [following[position] for position in range(count)]


def noised(raw_1SD: Tensor, noise: Noise, seed: int) -> Tensor:
    """Return the values with noise in place. The draws are made on the CPU: every device gets the same."""
    length, width = raw_1SD.shape[1:]
    rows = sorted({position % length for position in noise.positions})
    drawn = torch.randn((len(rows), width), generator=torch.Generator().manual_seed(seed))
    deviation = raw_1SD.to(torch.float32).std()
    changed = raw_1SD.clone()
    changed[0, rows] += (noise.scale * deviation * drawn.to(raw_1SD.device)).to(raw_1SD.dtype)
    return changed
