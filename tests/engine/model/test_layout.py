"""Values and the tensors that carry them: written entries read back, all others stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from djinn_jupyter.engine.model.discovery.heads import columns_by_bits, columns_by_factor, distinct
from djinn_jupyter.engine.model.hooks.layout import (
    Heads,
    Layout,
    Maps,
    PositionLayout,
    written,
)
from djinn_jupyter.errors import InvalidEdit

unhurried = settings(deadline=None, max_examples=60)
sizes = st.integers(1, 5)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@st.composite
def heads(draw: st.DrawFn) -> tuple[Heads, int]:
    """Heads over F columns, some of them of no head, by a rule or in any order."""
    count, features, others = draw(sizes), draw(sizes), draw(st.integers(0, 6))
    columns = count * features + others
    if draw(st.booleans()):
        order = draw(st.permutations(range(columns)))
        return Heads.of_index(torch.tensor(order[: count * features]).reshape(count, features)), columns
    return Heads(heads=count, features=features, offset=others, head_stride=features), columns


@st.composite
def carried(draw: st.DrawFn) -> tuple[Layout, Tensor]:
    """A layout with a tensor that it fits."""
    positions, dtype = draw(sizes), draw(dtypes)
    kind = draw(st.sampled_from(["batch first", "batch second", "merged", "streams", "heads first", "maps"]))
    found, columns = draw(heads())
    layouts: dict[str, tuple[Layout, tuple[int, ...]]] = {
        "batch first": (PositionLayout(position=1, batch=0, heads=found), (1, positions, columns)),
        "batch second": (PositionLayout(position=0, batch=1, heads=found), (positions, 1, columns)),
        "merged": (PositionLayout(position=0, batch=None, heads=found), (positions, columns)),
        "streams": (PositionLayout(position=2, batch=1), (3, 1, positions, columns)),
        "heads first": (PositionLayout(position=2, batch=0), (1, 3, positions, columns)),
        "maps": (Maps(), (1, 3, positions, columns)),
    }
    layout, shape = layouts[kind]
    raw = torch.randn(shape).to(dtype)
    return layout, raw if draw(st.booleans()) else raw.transpose(0, -1).contiguous().transpose(0, -1)


@unhurried
@given(carried())
def test_writing_what_was_read_changes_no_bit(case: tuple[Layout, Tensor]) -> None:
    layout, raw = case
    assert torch.equal(written(layout, raw, layout.read(raw), "here"), raw)


@unhurried
@given(carried())
def test_what_is_written_is_read_and_the_original_stays(case: tuple[Layout, Tensor]) -> None:
    layout, raw = case
    before = raw.clone()
    value = torch.randn(layout.read(raw).shape).to(raw)
    assert torch.equal(layout.read(written(layout, raw, value, "here")), value)
    assert torch.equal(raw, before)


@unhurried
@given(carried())
def test_positions_come_first_and_a_row_is_one_position(case: tuple[Layout, Tensor]) -> None:
    layout, raw = case
    value = layout.read(raw).clone()
    value[0] += 1
    changed = written(layout, raw, value, "here") != raw
    position = layout.position if isinstance(layout, PositionLayout) else raw.ndim - 2
    assert not changed.movedim(position, 0)[1:].any()


@unhurried
@given(heads(), sizes, st.data())
def test_writing_one_head_leaves_every_other_column(
    case: tuple[Heads, int], positions: int, data: st.DataObject
) -> None:
    found, columns = case
    layout = PositionLayout(position=1, batch=0, heads=found)
    head = data.draw(st.integers(0, found.heads - 1))
    raw = torch.randn(1, positions, columns)
    value = layout.read(raw).clone()
    value[:, head] = torch.randn(positions, found.features)
    changed = (written(layout, raw, value, "here") != raw)[0].any(0)
    mine = set(found.columns_HD()[head].tolist())
    assert set(changed.nonzero().flatten().tolist()) <= mine


def test_a_view_is_read_where_the_columns_follow_a_rule() -> None:
    raw = torch.randn(1, 4, 24)
    fused = Heads.of_index(torch.tensor([[3, 4], [11, 12], [19, 20]]))
    assert fused.index_HD is None
    value = PositionLayout(position=1, batch=0, heads=fused).read(raw)
    assert value.untyped_storage().data_ptr() == raw.untyped_storage().data_ptr()
    assert torch.equal(value[:, 1], raw[0, :, 11:13])


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidEdit, match=r"z\.1 has shape \(4, 8\), not \(3, 8\)"):
        written(PositionLayout(position=1, batch=0), torch.zeros(1, 4, 8), torch.zeros(3, 8), "z.1")


@unhurried
@given(heads(), dtypes)
def test_columns_are_found_by_their_bits(case: tuple[Heads, int], dtype: torch.dtype) -> None:
    found, columns = case
    flat_BF = torch.randn(16, columns).to(dtype)
    target_BHD = found.read(flat_BF)
    index = columns_by_bits(target_BHD, flat_BF)
    assert torch.equal(index, found.columns_HD())
    assert columns_by_bits(target_BHD + 1, flat_BF) is None


@unhurried
@given(heads(), dtypes)
def test_columns_are_found_under_one_constant_factor(case: tuple[Heads, int], dtype: torch.dtype) -> None:
    found, columns = case
    flat_BF = torch.randn(16, columns).to(dtype)
    index = columns_by_factor(found.read(flat_BF) * 0.3, flat_BF)
    assert torch.equal(index, found.columns_HD())
    factors = torch.linspace(1, 2, found.heads * found.features).reshape(found.heads, found.features)
    if found.heads * found.features > 1:
        assert columns_by_factor(found.read(flat_BF.float()) * factors, flat_BF.float()) is None


def test_repeated_heads_are_one_head() -> None:
    assert distinct(torch.tensor([[0, 1], [0, 1], [2, 3], [2, 3]])).tolist() == [[0, 1], [2, 3]]
