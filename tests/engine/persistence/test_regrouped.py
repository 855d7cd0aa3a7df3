"""Rows of an image come into the page groups of an engine whose layers lie on other devices, each layer's once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.store.image import GroupRows, RunRows
from djinn_jupyter.engine.store.load import rows_in_groups
from djinn_jupyter.errors import CheckpointRefused

HEADS, WIDTH, LENGTH = 2, 4, 6


def group(*layers: int, kind: str = "full") -> GroupGeometry:
    """Return a page group: of keys and values, or of the keys of indexers."""
    heads, width, values = (HEADS, WIDTH, WIDTH) if kind == "full" else (1, 3, 0)
    shape: dict[str, Any] = {"kind": kind, "kv_heads": heads, "key_dim": width, "value_dim": values}
    members = [LayerGeometry(cache_layer=layer, dtype=torch.float32, **shape) for layer in layers]
    return GroupGeometry.lay_out(members, 16)


def filled(group: GroupGeometry, first: int, end: int) -> GroupRows:
    """Return rows of a group, each with a number that tells its layer, its kind and its position."""
    runs = []
    for run in group.runs:
        own = group.layers[run.first : run.first + run.layers]
        made = [_numbers(layer.cache_layer, layer.kind, range(first, end), run.kv_heads) for layer in own]
        runs.append(RunRows(keys=_wide(made, run.key_dim), values=-_wide(made, run.value_dim)))
    layers = tuple(layer.cache_layer for layer in group.layers)
    return GroupRows(layers=layers, window=group.window, first=first, end=end, runs=tuple(runs))


def _numbers(layer: int, kind: str, positions: Sequence[int], heads: int) -> Tensor:
    numbers = torch.tensor([1000.0 * (layer + 1) + 100 * (kind == "index") + position for position in positions])
    return numbers.expand(heads, -1)


def _wide(layers: list[Tensor], width: int) -> Tensor:
    return torch.stack(layers)[..., None].expand(-1, -1, -1, width).clone()


ONE = (group(0, 1, 2), group(0, 1, 2, kind="index"))
TWO = (group(0), group(1, 2), group(0, kind="index"), group(1, 2, kind="index"))


@pytest.mark.parametrize(("written", "read"), [(ONE, TWO), (TWO, ONE)], ids=["one-to-two", "two-to-one"])
def test_keys_and_those_of_their_indexers_come_into_the_groups_of_another_placement(
    written: tuple[GroupGeometry, ...], read: tuple[GroupGeometry, ...]
) -> None:
    found = rows_in_groups([filled(one, 0, LENGTH) for one in written], read)
    for rows, geometry in zip(found, read, strict=True):
        assert rows.fits(geometry)
        expected = filled(geometry, 0, LENGTH)
        for (keys, values), run in zip(rows.runs, expected.runs, strict=True):
            assert torch.equal(keys, run.keys)
            assert torch.equal(values, run.values)


@pytest.mark.parametrize("given", [ONE[:1], (*ONE, ONE[1]), (ONE[0], group(0, 1, 3, kind="index"))])
def test_other_layers_are_refused(given: tuple[GroupGeometry, ...]) -> None:
    with pytest.raises(CheckpointRefused, match="other layers"):
        rows_in_groups([filled(one, 0, LENGTH) for one in given], TWO)


def test_an_end_that_its_rows_do_not_have_is_refused_before_memory_is_taken() -> None:
    whole = filled(ONE[0], 0, LENGTH)
    assert len(rows_in_groups([whole], TWO[:2])) == 2
    beyond = GroupRows(layers=whole.layers, window=None, first=0, end=LENGTH + 1, runs=whole.runs)
    with pytest.raises(CheckpointRefused, match="other layers"):
        rows_in_groups([beyond], TWO[:2])
