from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.api.patches import spell_positions
from djinn_jupyter.errors import InvalidEdit


def _never() -> tuple[int, int]:
    raise AssertionError("the ends need not be known for this")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        (5, (5,)),
        (-1, (-1,)),
        (np.int64(3), (3,)),
        ([1, 4], (1, 4)),
        (np.array([2, 3]), (2, 3)),
        (range(3), (0, 1, 2)),
        ("5", (5,)),
        ("2:5", (2, 3, 4)),
        ("0, 2:4,-1", (0, 2, 3, -1)),
        ("-3:-1", (-3, -2)),
        (slice(2, 8, 3), (2, 5)),
    ],
)
def test_as_written_so_meant(written: object, meant: object) -> None:
    assert spell_positions(written, _never) == meant  # type: ignore[arg-type]


@settings(deadline=None)
@given(length=st.integers(1, 30), start=st.none() | st.integers(-30, 30), stop=st.none() | st.integers(-30, 30))
def test_a_slice_means_what_it_means_in_python_where_that_is_inside(
    length: int, start: int | None, stop: int | None
) -> None:
    inside = all(bound is None or -length <= bound <= length for bound in (start, stop))
    expected = tuple(range(length)[start:stop])
    if not inside or not expected:
        return
    chosen = spell_positions(slice(start, stop), lambda: (0, length))
    assert chosen is not None
    assert tuple(index % length for index in chosen) == expected


@pytest.mark.parametrize("written", ["", "a", "1:2:3:4", "5:2", [], 1.5, [1.5], slice(1, 5, -1), "0:999999999"])
def test_what_selects_nothing_is_refused(written: object) -> None:
    with pytest.raises(InvalidEdit):
        spell_positions(written, lambda: (0, 5))  # type: ignore[arg-type]
