"""The methods of a sweep: what is asked, and its cells as hooks on the plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from djinn_jupyter.methods.sweep.engine.edits import elsewhere
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample
from djinn_jupyter.wire.edits import Add, Scale, Zero
from tests.engine.desk import array, tokens
from tests.engine.methods.plain_hooks import Hook, Hooks, PlainHooks, at, put

LENGTH = 24  # beyond a window of 8, and beyond 20, where a long rotary begins
CORRUPTED = tokens(LENGTH)
CLEAN = (*CORRUPTED[:5], *tokens(LENGTH, seed=2)[5:])
LONGER = (*CLEAN[:4], 99, 98, *CLEAN[6:], 97)
ROWS = (7, 8, 21)
A, B = 17, 42
METRICS = (f"logit({A}) - logit({B})", f"prob({A})", f"rank({B})")
COEFS = (0.0, 1.0, 2.5)
GRID = ("layer", "position")
NOISE = Noise(positions=(2, 3, -4), scale=2.0)
VECTOR = torch.randn(32, generator=torch.Generator().manual_seed(3))
Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a grid by hand: the hooks that make it."""

    index: Index
    hooks: Hooks


Cells = Callable[[PlainHooks], Iterable[Cell]]


def over_places(change: Callable[[PlainHooks, int], Hook], layers: int = 1, rows: int = 1) -> Cells:
    """Return the cells of residuals over layers and positions, some of each changed together."""

    def cells(plain: PlainHooks) -> Iterable[Cell]:
        top = len(plain.layers)
        for layer in (0, top - 2, top - 1):
            together = range(layer, min(layer + layers, top))
            for number in range(len(ROWS)):
                chosen = ROWS[number : number + rows]
                yield Cell((layer, number), {("resid_post", one): [at(chosen, change(plain, one))] for one in together})

    return cells


def from_clean(plain: PlainHooks, layer: int) -> Hook:
    return put(plain.value(CLEAN, ("resid_post", layer)))


def of_mean(plain: PlainHooks, layer: int) -> Hook:
    kept = plain.value(CLEAN, ("resid_post", layer))
    return put(kept.float().mean(1, keepdim=True).to(kept.dtype))


def resampled(plain: PlainHooks, layer: int) -> Hook:
    return put(plain.value(CLEAN, ("resid_post", layer))[:, elsewhere(LENGTH, seed=5)])


def scaled(factor: float) -> Callable[[PlainHooks, int], Hook]:
    return lambda plain, layer: lambda raw: raw * factor


def zeroed(plain: PlainHooks, layer: int) -> Hook:
    return torch.zeros_like


def added(plain: PlainHooks, layer: int) -> Hook:
    return lambda raw: raw + 0.5 * VECTOR.to(raw)


def over_coefficients(plain: PlainHooks) -> Iterable[Cell]:
    for layer in range(len(plain.layers)):
        for number, coef in enumerate(COEFS):
            yield Cell((layer, number), {("resid_post", layer): [at(ROWS, scaled(coef)(plain, layer))]})


def aligned(plain: PlainHooks) -> Iterable[Cell]:
    for layer in range(len(plain.layers)):
        kept = plain.value(LONGER, ("resid_post", layer))
        for number, (row, other) in enumerate(((3, 3), (5, 4), (23, 24))):
            yield Cell((layer, number), {("resid_post", layer): [at([row], put(kept[:, [other]]))]})


def in_noise(plain: PlainHooks) -> Iterable[Cell]:
    drawn = torch.randn((3, 32), generator=torch.Generator().manual_seed(5))  # in the order of the positions

    def spoil(raw: Tensor) -> Tensor:
        changed = raw.clone()
        changed[0, [2, 3, LENGTH - 4]] += (2.0 * raw.float().std() * drawn.to(raw.device)).to(raw.dtype)
        return changed

    for cell in over_places(from_clean)(plain):
        yield Cell(cell.index, {("resid_pre", 0): [spoil], **cell.hooks})


def pairs(plain: PlainHooks) -> Iterable[Cell]:
    below, above = 1, len(plain.layers) - 1
    for one, other in (((0, 0), (below, 1)), ((below, 0), (below, 2)), ((above, 2), (0, 1)), ((below, 1), (below, 1))):
        hooks: dict[Any, list[Hook]] = {}
        for layer, number in {one, other}:
            hooks.setdefault(("resid_post", layer), []).append(at([ROWS[number]], from_clean(plain, layer)))
        yield Cell((*one, *other), hooks)


def heads(plain: PlainHooks) -> Iterable[Cell]:
    for layer in range(len(plain.layers)):
        patch = put(plain.value(CLEAN, ("z", layer)))
        for head in (0, 3):
            yield Cell((layer, head), {("z", layer): [plain.of_heads([head], patch)]})


def heads_at_positions(plain: PlainHooks) -> Iterable[Cell]:
    for number, row in enumerate(ROWS):
        yield Cell((2, number), {("z", 1): [plain.of_heads([2], at([row], torch.zeros_like))]})


def pairs_of_heads(plain: PlainHooks) -> Iterable[Cell]:
    for one, other in (((0, 1), (2, 3)), ((1, 0), (1, 2)), ((1, 2), (3, 0)), ((2, 1), (2, 1))):
        hooks: dict[Any, list[Hook]] = {}
        for layer, head in {one, other}:
            hooks.setdefault(("z", layer), []).append(plain.of_heads([head], torch.zeros_like))
        yield Cell((*one, *other), hooks)


def neurons(plain: PlainHooks) -> Iterable[Cell]:
    for neuron in (0, 5, 40):

        def without(raw: Tensor, neuron: int = neuron) -> Tensor:
            changed = raw.clone()
            changed[..., neuron] = 0
            return changed

        yield Cell((neuron,), {("mlp_post", 1): [without]})


@dataclass(frozen=True, slots=True)
class Method:
    """What is asked of a sweep, and its cells by hand. Of the hundreds in a grid of this shape, which the number of
    layers says, these alone are asked for."""

    asked: dict[str, Any]
    cells: Cells
    shape: Callable[[int], tuple[int, ...]] | None = None

    def chosen(self, cells: Sequence[Cell], layers: int) -> tuple[int, ...]:
        """Return the cells' numbers, row by row; none where all are asked for."""
        if self.shape is None:
            return ()
        return tuple(int(numpy.ravel_multi_index(cell.index, self.shape(layers))) for cell in cells)


AT = {"positions": ROWS}
METHODS = {
    "patch": Method(AT, over_places(from_clean)),
    "windows of layers and positions": Method(
        {**AT, "windows": (("layer", 2), ("position", 2))}, over_places(from_clean, 2, 2)
    ),
    "windows of an edit": Method(
        {**AT, "windows": (("layer", 3),), "edit": Scale(factor=0.5)}, over_places(scaled(0.5), 3)
    ),
    "scale": Method({**AT, "edit": Scale(factor=1.5), "clean": None}, over_places(scaled(1.5))),
    "zero": Method({**AT, "edit": Zero(), "clean": None}, over_places(zeroed)),
    "add": Method({**AT, "edit": Add(vector=array(VECTOR), coef=0.5), "clean": None}, over_places(added)),
    "mean": Method({**AT, "edit": Mean()}, over_places(of_mean)),
    "resample": Method({**AT, "edit": Resample(), "seed": 5}, over_places(resampled)),
    "noise": Method({**AT, "corrupted": CLEAN, "noise": NOISE, "seed": 5}, in_noise),
    "pairs of cells": Method({**AT, "in_pairs": True}, pairs, lambda layers: (layers, 3, layers, 3)),
    "coefficients": Method(
        {**AT, "over": ("layer", "coef"), "coefs": COEFS, "edit": Scale(factor=9.0), "clean": None}, over_coefficients
    ),
    "aligned": Method({"clean": LONGER, "align": ((3, 3), (5, 4), (-1, -1))}, aligned),
    "heads": Method({"site": "z", "over": ("layer", "head")}, heads),
    "heads at positions": Method(
        {**AT, "site": "z.1", "over": ("head", "position"), "edit": Zero(), "clean": None}, heads_at_positions
    ),
    "pairs of heads": Method(
        {"site": "z", "over": ("layer", "head"), "in_pairs": True, "edit": Zero(), "clean": None},
        pairs_of_heads,
        lambda layers: (layers, 4, layers, 4),
    ),
    "neurons": Method({"site": "mlp_post.1[*]", "over": ("neuron",), "edit": Zero(), "clean": None}, neurons),
}
