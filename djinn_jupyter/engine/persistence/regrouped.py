"""The rows of an image in the page groups of this engine, whose layers may lie on other devices than the writer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerRun
from djinn_jupyter.engine.memory.kv.rows import Rows
from djinn_jupyter.engine.persistence.image import GroupRows
from djinn_jupyter.errors import CheckpointRefused

Pair = tuple[Tensor, Tensor]
OTHERWISE = "Its keys and values have other layers or shapes than this model."


def rows_in_groups(given: Sequence[GroupRows], groups: Sequence[GroupGeometry]) -> tuple[Rows, ...]:
    """Return the rows of an image by the page groups of this engine. Raises CheckpointRefused where the layers are not
    the same."""
    layers = [(tuple(layer.cache_layer for layer in group.layers), group.window) for group in groups]
    if [(one.layers, one.window) for one in given] == layers:
        return tuple(Rows(first=g.first, end=g.end, runs=tuple((r.keys, r.values) for r in g.runs)) for g in given)
    held = {(layer, one.window): (one, pair) for one in given for layer, pair in _by_layer(one)}
    wanted = {(layer.cache_layer, group.window) for group in groups for layer in group.layers}
    once = sum(len(one.layers) for one in given) == len(held) == sum(len(group.layers) for group in groups)
    if not once or set(held) != wanted:
        raise CheckpointRefused(OTHERWISE)
    return tuple(_group([held[layer.cache_layer, group.window] for layer in group.layers], group) for group in groups)


def _by_layer(given: GroupRows) -> Iterator[tuple[int, Pair]]:
    pairs = [(keys, values) for run in given.runs for keys, values in zip(run.keys, run.values, strict=True)]
    if len(pairs) != len(given.layers):
        raise CheckpointRefused(OTHERWISE)
    return zip(given.layers, pairs, strict=True)


def _group(held: Sequence[tuple[GroupRows, Pair]], group: GroupGeometry) -> Rows:
    """Return one group's rows: of the positions that all its layers have, up to the end of those that ran furthest in a
    stopped pass. Above the others' ends are zeros, which are written before they are read."""
    first, end = max(one.first for one, _ in held), max(one.end for one, _ in held)
    whole = [tuple(_between(rows, one.first, first, end) for rows in pair) for one, pair in held]
    return Rows(first=first, end=end, runs=tuple(_run(whole[r.first : r.first + r.layers], r) for r in group.runs))


def _between(rows_HTD: Tensor, begins: int, first: int, end: int) -> Tensor:
    there = rows_HTD[:, first - begins :]
    missing = rows_HTD.new_zeros((there.shape[0], end - first - there.shape[1], there.shape[2]))
    return torch.cat([there, missing], 1)


def _run(layers: Sequence[tuple[Tensor, ...]], run: LayerRun) -> Pair:
    try:
        return torch.stack([keys for keys, _ in layers]), torch.stack([values for _, values in layers])
    except RuntimeError as error:
        raise CheckpointRefused(OTHERWISE) from error
