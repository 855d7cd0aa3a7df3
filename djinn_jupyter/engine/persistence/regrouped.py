"""The rows of an image in the page groups of this engine, whose layers may lie on other devices than the writer's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerRun
from djinn_jupyter.engine.memory.kv.rows import Rows
from djinn_jupyter.engine.persistence.image import GroupRows
from djinn_jupyter.errors import CheckpointRefused

Pair = tuple[Tensor, Tensor]
Place = tuple[int, int | None, int]
"""A layer, the window of its group, and in how many groups of that window it was before."""
OTHERWISE = "Its keys and values have other layers or shapes than this model."


def rows_in_groups(given: Sequence[GroupRows], groups: Sequence[GroupGeometry]) -> tuple[Rows, ...]:
    """Return the rows of an image by the page groups of this engine. Raises CheckpointRefused where the layers are not
    the same."""
    own = [(tuple(layer.cache_layer for layer in group.layers), group.window) for group in groups]
    if [(one.layers, one.window) for one in given] == own:
        return tuple(Rows(first=g.first, end=g.end, runs=tuple((r.keys, r.values) for r in g.runs)) for g in given)
    pairs = [(one, pair) for one in given for pair in _pairs(one)]
    held = dict(zip(_places([(one.layers, one.window) for one in given]), pairs, strict=True))
    wanted = _places(own)
    if set(held) != set(wanted):
        raise CheckpointRefused(OTHERWISE)
    found = iter([held[place] for place in wanted])
    return tuple(_group(list(islice(found, len(group.layers))), group) for group in groups)


def _places(groups: Sequence[tuple[Sequence[int], int | None]]) -> list[Place]:
    """Return the place of each layer of each group, in order. A layer with an indexer is also in the group of its keys,
    and in that of their positions: these come in one order under every placement."""
    before: Counter[tuple[int, int | None]] = Counter()
    places = []
    for layer, window in ((layer, window) for layers, window in groups for layer in layers):
        places.append((layer, window, before[layer, window]))
        before[layer, window] += 1
    return places


def _pairs(given: GroupRows) -> list[Pair]:
    """Return the keys and values of each layer of a group. Raises CheckpointRefused where it has not as many layers or
    positions as it says."""
    pairs = [(keys, values) for run in given.runs for keys, values in zip(run.keys, run.values, strict=True)]
    count = given.end - given.first
    if len(pairs) != len(given.layers) or any(rows.shape[1] != count for pair in pairs for rows in pair):
        raise CheckpointRefused(OTHERWISE)
    return pairs


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
