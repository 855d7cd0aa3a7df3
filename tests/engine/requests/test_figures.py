"""Figures of a stopped value are numpy's over the whole of it; and they cross the wire in place of the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from djinn_jupyter.engine.loop import figures
from djinn_jupyter.engine.loop.figures import figures_for, figures_of, figures_of_each
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import encode
from djinn_jupyter.wire.readings import Figures
from tests.engine.desk import Desk, tokens
from tests.engine.requests.test_pooled_heads import inspected, part_of, pattern
from tests.engine.requests.test_pooling import values


def plainly(numbers: np.ndarray) -> list[float]:
    with np.errstate(all="ignore"):
        return [
            numbers.mean(),
            numbers.std(),
            numbers.min(),
            numbers.max(),
            np.sqrt(np.square(numbers).sum()),
        ]


def in_order(found: Figures) -> list[float]:
    return [found.mean, found.std, found.lowest, found.highest, found.norm]


@given(value=values(), chunk=st.sampled_from([1, 7, 2**22]))
def test_they_are_numpys_over_the_whole_value(value: Tensor, chunk: int) -> None:
    wide = value.double().numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "CHUNK", chunk)
        found, each = in_order(figures_of(value)), figures_of_each(value)
    expected = plainly(wide)
    assert np.array_equal(found[2:4], expected[2:4], equal_nan=True)
    assert np.allclose(found, expected, rtol=1e-9, equal_nan=True)
    assert np.allclose(each.numpy(), [plainly(row.reshape(-1)) for row in wide], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("site", ["resid_post.4", "pattern.3[1,3]", None])
@pytest.mark.parametrize("positions", [None, (0, 5, -1)])
def test_what_was_read_is_named_as_an_inspection_names_it(
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


def test_figures_of_a_pattern_of_910_positions_cross_the_wire_in_place_of_26_megabytes() -> None:
    part = part_of(pattern(910, 8, 910))
    whole = sum(len(frame) for frame in encode(1, inspected(to_array(part.value))))
    first = sum(len(frame) for frame in encode(1, figures_for(part, each=False)))
    assert whole > 26_000_000
    assert first < 3_000
