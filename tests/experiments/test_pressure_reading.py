"""What the figures of `pressure` mean, on curves made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.experiments.memory import Curve, Sample
from djinn_jupyter.experiments.pressure.experiment import plateau, resume_order


def curve(*books: int) -> Curve:
    return Curve([Sample(seconds=float(i), device=None, process=0, books=100, used=b) for i, b in enumerate(books)])


@given(st.integers(1, 200))
def test_every_session_is_resumed_once(count: int) -> None:
    assert sorted(resume_order(count)) == list(range(count))


@pytest.mark.parametrize(
    ("books", "first_out", "flat"),
    [
        ((1, 5, 9, 10, 10, 9, 10), 3.0, True),
        ((1, 5, 9, 10, 7, 10, 10), 3.0, True),
        ((1, 5, 9, 10, 15, 20, 25), 3.0, False),  # an eviction happened and the use grew on all the same
        ((10, 10, 10, 10), None, False),  # nothing was ever evicted
    ],
)
def test_a_plateau_is_flat_after_the_first_eviction(
    books: tuple[int, ...], first_out: float | None, flat: bool
) -> None:
    assert plateau(curve(*books), first_out, spawned=float(len(books)), per_session=3) is flat
