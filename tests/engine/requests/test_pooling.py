"""A value pooled for a view is numpy's pooling of the whole value, whatever it holds; and what was read is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from djinn_jupyter.engine.loop import figures
from djinn_jupyter.engine.loop.figures import PooledTensor, pooled
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Snapshot
from djinn_jupyter.wire.readings import Pooled
from tests.engine.desk import Desk, tokens

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ODD = (0.0, 1.0, -1.0, 2.5, -2.5, float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38, 1e-40)


@st.composite
def values(draw: st.DrawFn) -> Tensor:
    """Draw [T], [T, D] or [T, H, D], of odd numbers or of many different ones."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    count = int(np.prod(shape))
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        numbers = draw(st.lists(st.sampled_from(ODD), min_size=count, max_size=count))
        return torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def plainly(value: Tensor, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Pool a whole array, a block at a time, in numpy."""
    flat = value.double().numpy().reshape(len(value), -1)
    down, across = -(-flat.shape[0] // rows), -(-flat.shape[1] // columns)
    return np.array(
        [
            [_strongest(flat[row : row + down, column : column + across]) for column in range(0, flat.shape[1], across)]
            for row in range(0, flat.shape[0], down)
        ]
    )


def _strongest(block: np.ndarray[Any, Any]) -> float:
    numbers = block[~np.isnan(block)]
    return max(numbers, key=lambda number: (abs(number), number)) if numbers.size else np.nan


@given(value=values(), rows=st.integers(1, 10), columns=st.integers(1, 12), chunk=st.sampled_from([1, 7, 2**22]))
@example(value=torch.full((5, 3), torch.nan), rows=2, columns=2, chunk=1)
def test_a_pooled_value_is_numpys_pooling_of_the_whole(value: Tensor, rows: int, columns: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "CHUNK", chunk)
        found = pooled(value, rows, columns)
    expected = torch.from_numpy(plainly(value, rows, columns))
    assert found.cells.dtype == (_dtype_of_view(value.dtype) if _is_pooled(found) else value.dtype)
    cells = expected.to(found.cells.dtype)
    assert torch.equal(found.cells.isnan(), cells.isnan())
    assert torch.equal(found.cells.masked_fill(cells.isnan(), 0), cells.masked_fill(cells.isnan(), 0))
    assert found.cells.shape[0] <= rows
    assert found.cells.shape[1] <= columns


def _dtype_of_view(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype is torch.float16 else torch.bfloat16


def _is_pooled(found: PooledTensor) -> bool:
    return found.rows_per_cell * found.columns_per_cell > 1


@given(value=values(), rows=st.integers(1, 10), columns=st.integers(1, 12))
def test_the_range_and_the_count_are_those_of_the_value_to_the_last_bit(value: Tensor, rows: int, columns: int) -> None:
    found = pooled(value, rows, columns)
    finite = value[value.isfinite()].double()
    assert found.not_finite == value.numel() - finite.numel()
    assert found.lowest == (finite.min().item() if finite.numel() else None)
    assert found.highest == (finite.max().item() if finite.numel() else None)


def both(desk: Desk, **asked: Any) -> tuple[Snapshot, Pooled]:
    shared = {name: value for name, value in asked.items() if name in ("site", "positions", "ahead")}
    snapshot = desk.ask(ask.Inspect(session="a", **shared)).snapshot
    return snapshot, desk.ask(ask.ReadPooled(session="a", **asked)).pooled


@pytest.mark.parametrize("site", ["resid_post.4", "resid_post.2", "z.3", "z.3[1,3]", "pattern.3", "mlp_out.1[2:9]"])
@pytest.mark.parametrize("positions", [None, (0, 5, -1)])
def test_what_was_read_is_named_as_an_inspection_names_it(
    desk: Desk, site: str, positions: tuple[int, ...] | None
) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen, drawn = both(desk, site=site, positions=positions, rows=7, columns=11)
    for name in ("site", "axes", "positions", "dtype", "exactness", "stop"):
        assert getattr(drawn, name) == getattr(seen, name), name
    assert drawn.shape == seen.value.shape
    expected = pooled(to_tensor(seen.value), 7, 11)
    assert torch.equal(to_tensor(drawn.cells), expected.cells)
    assert (drawn.lowest, drawn.highest) == (expected.lowest, expected.highest)


def test_positions_alone_have_a_row_each(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen, drawn = both(desk, rows=4, columns=8, alone=(3, 38, 39))
    assert drawn.alone is not None
    expected = pooled(to_tensor(seen.value)[[3, 38, 39]], 3, 8).cells
    assert torch.equal(to_tensor(drawn.alone), expected)
    with pytest.raises(InvalidEdit, match="Position 40 is not among those that are read"):
        desk.ask(ask.ReadPooled(session="a", alone=(40,)))


@pytest.mark.parametrize(("site", "last", "count"), [("resid_post.4", 3, 3), ("z.3[1,3]", 50, 40), (None, 0, None)])
def test_the_last_positions_are_whole_to_the_last_bit(desk: Desk, site: str, last: int, count: int | None) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen, drawn = both(desk, site=site, rows=4, columns=8, last=last)
    assert (drawn.last is None) == (count is None)
    if drawn.last is not None:
        assert drawn.last.dtype == seen.value.dtype
        assert torch.equal(to_tensor(drawn.last), to_tensor(seen.value)[-count:])


def test_the_mean_of_heads_is_pooled_where_there_are_heads(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen, drawn = both(desk, site="z.3", mean_of_heads=True, rows=5, columns=4)
    expected = pooled(to_tensor(seen.value).mean(1), 5, 4)
    assert torch.equal(to_tensor(drawn.cells), expected.cells)
    assert (drawn.lowest, drawn.highest) == (expected.lowest, expected.highest)
    assert drawn.mean_of_heads
    with pytest.raises(UsageError, match=r"resid_post\.4 has no heads \(T D\): leave their mean out\."):
        desk.ask(ask.ReadPooled(session="a", mean_of_heads=True))


def test_an_edited_value_is_drawn_as_edited_and_as_another_edition(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    _, before = both(desk)
    desk.edit()
    seen, after = both(desk)
    assert after.stop == seen.stop
    assert after.stop.edition > before.stop.edition
    assert torch.equal(to_tensor(after.cells), pooled(to_tensor(seen.value), 128, 128).cells)
