"""The meaning of `pressure`'s figures, on curves made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_evaluation.memory import Curve, MemorySample
from djinn_evaluation.pressure.experiment import plateau, resume_order


def curve(*accounted: int) -> Curve:
    return Curve(
        [MemorySample(seconds=float(i), device=None, process=0, accounted=100, used=b) for i, b in enumerate(accounted)]
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
    ("accounted", "first_out", "flat"),
    [
        ((1, 5, 9, 10, 10, 9, 10), 3.0, True),
        ((1, 5, 9, 10, 8, 10, 10), 3.0, True),
        ((1, 5, 9, 10, 7, 10, 10), 3.0, True),  # one has left and the next has not come
        ((1, 5, 9, 10, 6, 10, 10), 3.0, False),  # more than a session's worth
        ((1, 5, 9, 10, 15, 20, 25), 3.0, False),  # an eviction happened and the use grew on all the same
        ((10, 10, 10, 10), None, False),  # nothing was ever evicted
    ],
)
def test_a_plateau_is_flat_after_the_first_eviction(
    accounted: tuple[int, ...], first_out: float | None, flat: bool
) -> None:
    assert plateau(curve(*accounted), first_out, spawned=float(len(accounted)), per_session=3) is flat


def test_a_plateau_is_read_from_the_accounting_where_that_is_the_limit() -> None:
    """The count of a GPU's driver includes CUDA's own memory, which is more than the whole limit."""
    samples = [MemorySample(seconds=float(i), device=500 + 9 * i, process=0, accounted=100, used=10) for i in range(5)]
    assert not plateau(Curve(samples), 0.0, spawned=5.0, per_session=3)
    assert plateau(Curve(samples), 0.0, spawned=5.0, per_session=3, accounted=True)


def at(*moments: float) -> Curve:
    return Curve([MemorySample(seconds=moment, device=None, process=0, accounted=0, used=0) for moment in moments])


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
