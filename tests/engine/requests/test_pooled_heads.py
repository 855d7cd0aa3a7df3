"""Heads pooled for a card are numpy's pooling of each whole head, and its strongest entries are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.loop.figures import PartOfPass, pooled_for
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.codec import encode
from djinn_jupyter.wire.looks import Inspected
from djinn_jupyter.wire.nouns import Snapshot, StopIdentity
from djinn_jupyter.wire.readings import Pooled, PooledRead
from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, tokens
from tests.engine.requests.test_pooling import plainly

STOP = StopIdentity(session="a", number=1, edition=1)


def pattern(queries: int, heads: int, keys: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return causal attention [queries, heads, keys] with ties: many weights are zero."""
    scores = torch.randn(queries, heads, keys, generator=torch.Generator().manual_seed(3))
    ahead = torch.arange(keys)[None, None, :] > torch.arange(keys - queries, keys)[:, None, None]
    return scores.masked_fill(ahead, -torch.inf).softmax(-1).to(dtype)


def part_of(value: Tensor, site: str = "pattern.3") -> PartOfPass:
    positions = tuple(range(len(value)))
    return PartOfPass(
        stop=STOP, site=parse_site(site), axes="T H K", value=value, positions=positions, exactness="exact"
    )


def asked(**given: Any) -> ask.ReadPooled:
    return ask.ReadPooled(session="a", rows=1, columns=1, **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "cells"), [(40, 40, 4 * 81), (40, 40, 4 * 40**2), (1, 90, 400)])
def test_each_head_is_pooled_alone(queries: int, keys: int, cells: int, dtype: torch.dtype) -> None:
    value = pattern(queries, 6, keys, dtype)
    read = pooled_for(asked(heads=cells, most_heads=4), part_of(value)).heads
    assert read.heads == (0, 1, 2, 3)
    side = int((cells // 4) ** 0.5)
    expected = torch.stack([torch.from_numpy(plainly(value[:, head], side, side)) for head in range(4)])
    found = to_tensor(read.cells)
    assert torch.equal(found, expected.to(found.dtype))
    assert found.shape[1] * found.shape[2] * 4 <= cells
    assert (found.dtype == dtype) == (read.rows_per_cell == read.columns_per_cell == 1 or dtype is torch.bfloat16)


def test_cells_that_are_not_to_be_rounded_are_numbers_of_the_value() -> None:
    value = pattern(40, 2, 40)
    read = pooled_for(asked(heads=200, rounded=False), part_of(value))
    expected = np.stack([plainly(value[:, head], 10, 10) for head in range(2)])
    assert torch.equal(to_tensor(read.heads.cells), torch.from_numpy(expected).float())
    assert to_tensor(read.cells).dtype == value.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_strongest_entries_are_those_of_the_whole_value_and_of_equal_ones_the_first(dtype: torch.dtype) -> None:
    value = pattern(40, 6, 40, dtype)
    value[-1, 0] = 0.025
    value[-2, 1, 5] = torch.nan
    read = pooled_for(asked(strongest=3, strongest_at=16), part_of(value)).strongest
    assert read is not None
    late = value[-16:].float().numpy()
    places = np.argsort(-late, axis=-1, kind="stable")[..., :3]
    assert np.array_equal(to_tensor(read.places).numpy(), places)
    assert places[-1, 0].tolist() == [0, 1, 2]
    assert torch.equal(to_tensor(read.values), value[-16:].gather(-1, torch.from_numpy(places)))


def test_selected_heads_keep_their_numbers_and_a_value_without_heads_has_none() -> None:
    some = pooled_for(asked(heads=100), part_of(pattern(5, 2, 5), "pattern.3[4,6]")).heads
    assert some.heads == (4, 6)
    plain = PartOfPass(
        stop=STOP, site=parse_site("embed"), axes="T D", value=torch.ones(3, 4), positions=(0, 1, 2), exactness="exact"
    )
    read = pooled_for(asked(heads=100, strongest=2), plain)
    assert read.heads is read.strongest is None


@pytest.mark.parametrize("site", ["pattern.3", "pattern.3[1,3]", "z.3"])
def test_heads_of_a_stopped_pass_are_those_of_an_inspection(desk: Desk, site: str) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen = to_tensor(desk.ask(ask.Inspect(session="a", site=site)).snapshot.value)
    read = desk.ask(ask.ReadPooled(session="a", site=site, heads=2**17)).pooled.heads
    assert torch.equal(to_tensor(read.cells), seen.transpose(0, 1))


def on_the_wire(reply: Inspected | PooledRead) -> int:
    return sum(len(frame) for frame in encode(1, reply))


def test_a_pattern_of_910_positions_crosses_the_wire_in_a_hundredth_of_its_bytes() -> None:
    from djinn_jupyter.widgets.pictures import PATTERN_CELLS as MOST

    value = pattern(910, 8, 910)
    whole = on_the_wire(inspected(to_array(value)))
    asked_for = asked(heads=MOST.cells, most_heads=MOST.heads, strongest=MOST.strongest, strongest_at=MOST.queries)
    drawn = pooled_for(asked_for, part_of(value))
    assert _arrays(drawn) == 8 * 114 * 114 * 2 + 16 * 8 * 3 * (4 + 4) + 2
    assert whole > 26_000_000
    assert on_the_wire(PooledRead(pooled=drawn)) < whole // 100


def inspected(value: Array) -> Inspected:
    """Return the reply with the whole of a pattern."""
    snapshot = Snapshot(
        stop=STOP,
        site="pattern.3",
        value=value,
        axes="T H K",
        positions=tuple(range(910)),
        dtype="float32",
        exactness="exact",
    )
    return Inspected(snapshot=snapshot)


def _arrays(drawn: Pooled) -> int:
    """Return the bytes of all arrays of a reply."""
    return sum(one.nbytes for one in (drawn.cells, drawn.heads.cells, drawn.strongest.places, drawn.strongest.values))
