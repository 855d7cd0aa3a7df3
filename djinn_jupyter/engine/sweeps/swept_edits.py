"""What a sweep puts at a cell: the clean line's value, an edit of the line's own, or one made of a whole line."""

from __future__ import annotations

import random
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.engine.sweeps.places import Cell
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.edits import Add, NormMatch, Orthogonal, PatchFrom, Scale
from djinn_jupyter.wire.sweeps import Mean, Noise, Resample, SweptEdit

COEFFICIENTS: Final[dict[type, str]] = {Scale: "factor", Add: "coef", NormMatch: "coef", Orthogonal: "coef"}


def check(edit: SweptEdit, width: int, *, coefs: bool) -> None:
    """Raise InvalidEdit or UsageError for an edit that a sweep cannot make."""
    if isinstance(edit, PatchFrom):
        raise InvalidEdit("A sweep patches from its clean line: give that, and no edit.")
    if coefs and type(edit) not in COEFFICIENTS:
        raise UsageError(
            "A sweep over coef needs an edit with a coefficient: scale, add, norm_match or orthogonal; "
            f"{spell(edit)} has none."
        )
    if not isinstance(edit, Mean | Resample):
        edit_kinds.check(edit, width)


def reads_a_line(edit: SweptEdit | None) -> bool:
    """Return whether an edit puts values of the clean line in place."""
    return edit is None or isinstance(edit, Mean | Resample)


def spell(edit: SweptEdit | None, noise: Noise | None = None) -> str:
    if noise is not None:
        places = ", ".join(map(str, noise.positions))
        return f"{spell(edit)}, noise {noise.scale:g} at {places}"
    match edit:
        case None:
            return "patch from the clean line"
        case Mean():
            return "mean over positions"
        case Resample():
            return "resample positions"
    return edit_kinds.spell(edit)


def part_of(edit: SweptEdit | None, cell: Cell, value: Tensor, source: Tensor, seed: int) -> Tensor:
    """Return what a cell gets: `value` is the line's own there, at all positions, `source` that of the clean line."""
    if edit is None:
        return edits.take(source, cell.rows, cell.heads)
    if isinstance(edit, Mean):
        mean = edits.take(source.to(torch.float32).mean(0, keepdim=True).to(source.dtype), None, cell.heads)
        return mean.expand(len(value) if cell.rows is None else len(cell.rows), *mean.shape[1:]).clone()
    if isinstance(edit, Resample):
        drawn = elsewhere(len(source), seed)
        return edits.take(source, drawn if cell.rows is None else [drawn[row] for row in cell.rows], cell.heads)
    if cell.coef is not None:
        edit = msgspec.structs.replace(edit, **{COEFFICIENTS[type(edit)]: cell.coef})
    return edit_kinds.compute(edits.take(value, cell.rows, cell.heads), edit)


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
