"""A value pooled for a view, its heads and its figures are numpy's of the whole value; and what was read is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from djinn_jupyter.engine.requests import figures
from djinn_jupyter.engine.requests.figures import (
    PartOfPass,
    PooledTensor,
    figures_of,
    figures_of_each,
    pooled,
    pooled_for,
)
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.codec import encode
from djinn_jupyter.wire.looks import Inspected
from djinn_jupyter.wire.nouns import Snapshot, StopIdentity
from djinn_jupyter.wire.readings import Figures, Pooled, PooledRead
from djinn_jupyter.wire.sites import parse_site
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


# --- heads ------------------------------------------------------------------------------------------------------------


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


# --- figures ----------------------------------------------------------------------------------------------------------


def five_of(numbers: np.ndarray) -> list[float]:
    with np.errstate(all="ignore"):
        return [numbers.mean(), numbers.std(), numbers.min(), numbers.max(), np.sqrt(np.square(numbers).sum())]


def in_order(found: Figures) -> list[float]:
    return [found.mean, found.std, found.lowest, found.highest, found.norm]


@given(value=values(), chunk=st.sampled_from([1, 7, 2**22]))
def test_they_are_numpys_over_the_whole_value(value: Tensor, chunk: int) -> None:
    wide = value.double().numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "CHUNK", chunk)
        found, each = in_order(figures_of(value)), figures_of_each(value)
    expected = five_of(wide)
    assert np.array_equal(found[2:4], expected[2:4], equal_nan=True)
    assert np.allclose(found, expected, rtol=1e-9, equal_nan=True)
    assert np.allclose(each.numpy(), [five_of(row.reshape(-1)) for row in wide], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("site", ["resid_post.4", "pattern.3[1,3]", None])
@pytest.mark.parametrize("positions", [None, (0, 5, -1)])
def test_figures_are_named_as_an_inspection_names_them(
    desk: Desk, site: str | None, positions: tuple[int, ...] | None
) -> None:
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    seen = desk.ask(ask.Inspect(session="a", site=site, positions=positions)).snapshot
    read = desk.ask(ask.ReadFigures(session="a", site=site, positions=positions, each=True))
    for name in ("site", "axes", "positions", "dtype", "exactness", "stop"):
        assert getattr(read, name) == getattr(seen, name), name
    assert read.shape == seen.value.shape
    value = to_tensor(seen.value)
    assert read.all == figures_of(value)
    assert torch.equal(to_tensor(read.each), figures_of_each(value))
