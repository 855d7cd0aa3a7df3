"""The meaning of `pressure`'s figures, on curves made by hand."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_evaluation.claims.table import CLAIMS
from djinn_evaluation.memory import Curve, MemorySample
from djinn_evaluation.nvml import Card, Unseen
from djinn_evaluation.pressure import Arithmetic, _driver, plateau, resume_order
from djinn_jupyter.units import GIB


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
        ((1, 5, 9, 10, 6, 10, 10), 3.0, False),  # more than that
        ((1, 5, 9, 10, 15, 20, 25), 3.0, False),  # an eviction happened and the use grew on all the same
        ((10, 10, 10, 10), None, False),  # nothing was ever evicted
    ],
)
def test_a_plateau_is_flat_after_the_first_eviction(
    accounted: tuple[int, ...], first_out: float | None, flat: bool
) -> None:
    assert plateau(curve(*accounted), first_out, spawned=float(len(accounted)), within=3) is flat


def test_a_plateau_is_read_from_the_accounting_where_that_is_the_limit() -> None:
    """The count of a GPU's driver includes CUDA's own memory, which is more than the whole limit."""
    samples = [MemorySample(seconds=float(i), device=500 + 9 * i, process=0, accounted=100, used=10) for i in range(5)]
    assert not plateau(Curve(samples), 0.0, spawned=5.0, within=3)
    assert plateau(Curve(samples), 0.0, spawned=5.0, within=3, accounted=True)


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


def seen(*devices: int | None, card: int | None = 80 * GIB) -> Curve:
    """Samples whose books stand still at a GiB while the driver's figure moves."""
    samples = enumerate(devices)
    return Curve(
        [MemorySample(seconds=i / 20, device=d, process=0, accounted=GIB, used=GIB, card=card) for i, d in samples]
    )


def sums(*, imposed: int | None = None, accounted: bool = False) -> Arithmetic:
    return Arithmetic(
        weights=24 * GIB,
        per_session=GIB,
        sessions=60,
        capacity=imposed or 70 * GIB,
        capacity_imposed=imposed is not None,
        capacity_accounted=accounted,
        host=None,
    )


@pytest.mark.parametrize(("imposed", "card"), [(None, 80), (72 * GIB, 72)])
def test_the_drivers_samples_are_held_against_the_card_also_without_a_limit(imposed: int | None, card: float) -> None:
    """The engine's books stay within what it gave itself, whatever the driver says."""
    claim = next(one for one in CLAIMS if one.number == 17)
    for most, verdict in ((card * 78 / 80, "holds"), (card + 1, "refuted"), (card / 2, "refuted")):
        found = _driver(sums(imposed=imposed), seen(24 * GIB, int(most * GIB), int(most * GIB)))
        assert found["card_gb"] == card
        assert [round(at, 2) for at, _ in found["driver_samples"]] == [0, 0.05, 0.1]
        values = {"samples": [found["driver_samples"]] * 2, "capacity": [found["card_gb"]] * 2}
        assert claim.verdict_on({**values, "plateau": [True] * 2, "hertz": [20.0] * 2}).verdict == verdict, most


@pytest.mark.parametrize(
    ("curve", "limit", "why"),
    [
        (seen(None, None, card=None), {}, "without a GPU no driver counts memory"),
        (seen(GIB, GIB), {"imposed": 12 << 20, "accounted": True}, "the limit is one of weights and pages"),
    ],
)
def test_what_no_driver_counts_is_told_with_its_reason(curve: Curve, limit: dict[str, Any], why: str) -> None:
    found = _driver(sums(**limit), curve)
    assert found["card_gb"].reason.startswith(why)


def test_a_driver_that_no_longer_answers_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples until then are not taken for the whole course."""

    def refuses(*asked: Any, **named: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refuses)
    with pytest.raises(Unseen, match="NVML no longer tells this GPU's memory"):
        Card(object()).bytes_in_use()
