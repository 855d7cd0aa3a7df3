"""The meaning of `pressure`'s figures, on curves made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.experiments.memory import Curve, MemorySample
from djinn_jupyter.experiments.pressure.experiment import plateau, resume_order


def curve(*books: int) -> Curve:
    return Curve(
        [MemorySample(seconds=float(i), device=None, process=0, books=100, used=b) for i, b in enumerate(books)]
    )


@given(st.integers(1, 200))
def test_every_session_is_resumed_once(count: int) -> None:
    assert sorted(resume_order(count)) == list(range(count))


@given(st.integers(2, 60).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_the_order_defeats_a_card_that_keeps_what_was_used_last(sessions: tuple[int, int]) -> None:
    """A card of any room never holds the session that is resumed next."""
    count, room = sessions
    card = list(range(count))[-room:]
    for session in resume_order(count):
        assert session not in card
        card = [*card[1:], session]


@pytest.mark.parametrize(
    ("books", "first_out", "flat"),
    [
        ((1, 5, 9, 10, 10, 9, 10), 3.0, True),
        ((1, 5, 9, 10, 8, 10, 10), 3.0, True),
        ((1, 5, 9, 10, 7, 10, 10), 3.0, False),  # a whole session's worth
        ((1, 5, 9, 10, 15, 20, 25), 3.0, False),  # an eviction happened and the use grew on all the same
        ((10, 10, 10, 10), None, False),  # nothing was ever evicted
    ],
)
def test_a_plateau_is_flat_after_the_first_eviction(
    books: tuple[int, ...], first_out: float | None, flat: bool
) -> None:
    assert plateau(curve(*books), first_out, spawned=float(len(books)), per_session=3) is flat


def at(*moments: float) -> Curve:
    return Curve([MemorySample(seconds=moment, device=None, process=0, books=0, used=0) for moment in moments])


@pytest.mark.parametrize(
    ("moments", "least"),
    [
        ([i / 20 for i in range(61)], 20),
        (
            [*(i / 20 for i in range(21)), *(2 + i / 20 for i in range(41))],
            1,
        ),  # many on the whole, and a second without
        ([i / 20 for i in range(11)], 22),  # half a second
        ([0.0], 0),
    ],
)
def test_sampling_is_as_dense_as_its_thinnest_second(moments: list[float], least: float) -> None:
    assert at(*moments).least_rate == pytest.approx(least)
