"""The flatline of the link, on samples made by hand: it judges wall time, in which a link can idle."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from djinn_evaluation.baselines.copies import HostCopier, Sample
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import PcieFlatline, ValidationFile
from djinn_evaluation.course import Unmeasured
from djinn_evaluation.memory import Curve, MemorySample
from djinn_evaluation.validation import flatline as verdict
from djinn_evaluation.validation.flatline import HandStreamed, MovedBytes, TimeSpan, sustained, window_rates
from djinn_jupyter.units import MIB
from djinn_jupyter.wire.nouns import LayerCopy

PASSES, LAYERS, ROUNDS = 50, 8, 9
SIZE = 10 * MIB


def wanted(*settings: str) -> PcieFlatline:
    return read("validation_small.yaml", ValidationFile, settings).pcie_flatline


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds for one layer: to copy it, and to compute with it."""

    copying: float = 0.010
    computing: float = 0.010

    def prefetched(self) -> list[LayerCopy]:
        """The next layer comes while one is computed."""
        step, together = max(self.copying, self.computing), min(self.copying, self.computing)
        return [self._copy(number, number * step, together) for number in range(PASSES * LAYERS)]

    def in_turns(self) -> list[LayerCopy]:
        """No prefetch, or copies on the stream that computes."""
        step = self.copying + self.computing
        return [self._copy(number, number * step, 0.0) for number in range(PASSES * LAYERS)]

    def _copy(self, number: int, begun: float, overlapped: float) -> LayerCopy:
        return LayerCopy(
            number=number + 1,
            layer=number % LAYERS,
            bytes_moved=SIZE,
            seconds=self.copying,
            begun=1e9 + begun,
            stalled_seconds=self.copying - overlapped,
            overlapped_seconds=overlapped,
        )


MACHINE = Machine()
PLAIN = SIZE / MIB / MACHINE.copying  # MiB a second of the link


def flow(copies: list[LayerCopy], *, computing: float | None = None, **changes: Any) -> verdict.Flow:
    first, last = min(copy.begun for copy in copies), max(copy.begun + copy.seconds for copy in copies)
    edges = [first + (last - first) * part / ROUNDS for part in range(ROUNDS + 1)]
    curve = Curve([MemorySample(seconds=0.0, device=None, process=0, accounted=2 * MIB, used=2 * MIB)])
    fields = {
        "copies": tuple(copies),
        "spans": tuple(TimeSpan(begun=begun, ended=ended) for begun, ended in pairwise(edges)),
        "passes": PASSES,
        "elapsed": last - first,
        "computing": len(copies) * MACHINE.computing if computing is None else computing,
        "streamed": LAYERS * SIZE,
        "curve": curve,
        "runs": ((1,), (1,)),
        "rates": (1.0,),
    }
    return verdict.Flow(**{**fields, **changes})


def judged(found: verdict.Flow, *settings: str, plain: float = PLAIN, **more: Any) -> dict[str, Any]:
    """Judge the samples beside manual offload that attains `plain` MiB a second in each round and overlaps all the
    time; `bar` names other fields of it."""
    bar = verdict.Bar(
        required=verdict.OF_BOTH * plain,
        fastest=more.pop("fastest", PLAIN),
        plain=(),
        rounds=(plain,) * ROUNDS,
        together=1.0,
        without_core=0.0,
        measured_here=True,
    )
    asked = wanted("pcie_flatline.sample_duration_seconds=1", *settings)
    return verdict.judge(asked, replace(bar, **more.pop("bar", {})), found, limit_gb=more.pop("limit_gb", None), **more)


# --- windows ---------------------------------------------------------------------------------------------------------


def test_a_window_has_the_bytes_of_its_own_time() -> None:
    moved = [MovedBytes(begun=10.0, seconds=0.1, nbytes=100), MovedBytes(begun=10.2, seconds=0.1, nbytes=100)]
    rates = window_rates(moved, [TimeSpan(begun=10.0, ended=10.4)], seconds=0.1)
    assert rates == pytest.approx([1000.0, 0.0, 1000.0, 0.0], abs=1e-3)


def test_time_between_runs_is_in_no_window() -> None:
    moved = [MovedBytes(begun=0.0, seconds=0.1, nbytes=100), MovedBytes(begun=5.0, seconds=0.1, nbytes=300)]
    spans = [TimeSpan(begun=0.0, ended=0.1), TimeSpan(begun=5.0, ended=5.1)]
    assert window_rates(moved, spans, seconds=0.1) == pytest.approx([1000.0, 3000.0])
    assert window_rates(moved, spans, seconds=0.2) == pytest.approx([2000.0])
    assert window_rates([], []) == window_rates(moved, [TimeSpan(begun=0.0, ended=0.01)]) == [], (
        "no time has no windows"
    )


@given(
    st.lists(st.tuples(st.floats(0.0, 0.05), st.floats(0.001, 0.08), st.integers(0, 1000)), min_size=1, max_size=30),
    st.integers(1, 6),
)
def test_windows_that_cover_all_time_have_all_bytes(steps: list[tuple[float, float, int]], parts: int) -> None:
    """However the time is cut into spans that follow each other."""
    at, moved = 0.0, []
    for gap, seconds, nbytes in steps:
        moved.append(MovedBytes(begun=at + gap, seconds=seconds, nbytes=nbytes))
        at += gap + seconds
    spans = [TimeSpan(begun=at * part / parts, ended=at * (part + 1) / parts) for part in range(parts)]
    assert sum(window_rates(moved, spans, seconds=at / 4)) * at / 4 == pytest.approx(sum(m.nbytes for m in moved))


def test_the_rate_that_a_share_of_the_windows_reached() -> None:
    rates = [float(n) for n in range(1, 11)]
    assert (sustained(rates, 0.8), sustained(rates, 1.0)) == (3.0, 1.0)
    assert sum(rate >= sustained(rates, 0.8) for rate in rates) == 8


# --- the verdict -----------------------------------------------------------------------------------------------------


def test_without_a_fault_it_passes() -> None:
    found = judged(flow(MACHINE.prefetched()))
    assert (found["passed"], found["failures"], found["undecided"]) == (True, [], [])
    assert (found["samples_above_ratio"], found["overlap_ratio"]) == (1.0, pytest.approx(1.0))
    assert found["bandwidth_mbps"] == pytest.approx(PLAIN)


def test_a_link_that_is_busy_four_percent_of_the_time_fails() -> None:
    """120 copies of 256 MiB at 25,000 MiB a second, one each quarter of a second: each copy is fast enough, the link
    idles. Judged copy by copy this passed."""
    size = 256 * MIB
    copies = [
        LayerCopy(
            number=n, layer=n % 8, bytes_moved=size, seconds=256 / 25_000, begun=n / 4, stalled_seconds=0.0,
            overlapped_seconds=256 / 25_000,
        )
        for n in range(120)
    ]  # fmt: skip
    whole = flow(copies, passes=15, streamed=8 * size, computing=30.0)
    found = judged(whole, plain=20_000.0, fastest=25_000.0)
    assert found["failures"] == ["Too few windows of wall time reached the required bandwidth."]
    assert found["samples_above_ratio"] < 0.05
    assert found["copy_mean_mbps"] == pytest.approx(25_000)


@pytest.mark.parametrize("machine", [MACHINE, Machine(copying=0.010, computing=0.006)])
def test_copying_and_computing_in_turns_fails(machine: Machine) -> None:
    """Whether nothing is prefetched, or copies are queued behind what is computed."""
    found = judged(flow(machine.in_turns(), computing=PASSES * LAYERS * machine.computing))
    assert found["samples_above_ratio"] == 0.0
    assert len(found["failures"]) == 2


def test_short_copies_that_are_over_between_two_layers_are_not_waited_for() -> None:
    """The copying thread of a CPU may be done before the next layer begins; on a GPU events say what is computed."""
    copies = [msgspec.structs.replace(c, stalled_seconds=0.0, overlapped_seconds=0.0) for c in MACHINE.in_turns()]
    found = flow(copies)
    assert found.together(waits=True) == pytest.approx(1.0)
    assert found.together(waits=False) == 0.0
    assert flow(MACHINE.in_turns()).together(waits=True) == 0.0


def test_turns_are_found_where_a_slow_machine_hides_them_from_the_clock() -> None:
    """Computing takes nearly all of the time, so that the windows are those of a prefetched ring."""
    machine = Machine(copying=0.001, computing=0.020)
    computing = PASSES * LAYERS * machine.computing
    fast = SIZE / MIB / machine.copying
    whole = flow(machine.prefetched(), computing=computing)
    plain = verdict.sustained_in(verdict.moved_by(whole.copies), whole.spans, 0.8)
    good = judged(whole, bar={"rounds": tuple(plain)}, fastest=fast)
    assert (good["failures"], good["windows"]["verdict"]) == ([], "holds")
    found = judged(flow(machine.in_turns(), computing=computing), bar={"rounds": tuple(plain)}, fastest=fast)
    assert found["windows"]["verdict"] != "refuted"
    assert [sentence[:32] for sentence in found["failures"]] == ["Copying and computing took turns"]


def test_a_copy_made_twice_fails_by_the_bytes_or_by_the_drivers_counter() -> None:
    twice = [copy for copy in MACHINE.prefetched() for _ in range(2)]
    assert any("other bytes than those that stream" in said for said in judged(flow(twice))["failures"])
    whole = flow(MACHINE.prefetched())
    assert judged(whole, carried=1.1 * whole.moved)["passed"]
    uncounted = judged(whole, carried=2.1 * whole.moved)
    assert uncounted["failures"] == ["The link carried other bytes than the engine counted."]
    assert uncounted["carried_over_counted"] == pytest.approx(2.1)


def test_the_share_of_windows_decides() -> None:
    """A quarter of the time is slow, in every round."""
    copies = [copy for part in range(4 * ROUNDS) for copy in _part(part, slow=part % 4 == 0)]
    assert judged(flow(copies))["failures"][0] == verdict.TOO_FEW
    assert judged(flow(copies), "pcie_flatline.sustained_ratio=0.7")["windows"]["verdict"] == "holds"


def test_two_slow_rounds_leave_the_verdict_open() -> None:
    """One may be another program's doing, and of two nothing is known."""
    for slow, verdict_ in (({0}, "holds"), ({0, 5}, "undecided"), ({0, 2, 4, 5, 6, 7, 8}, "undecided")):
        copies = [copy for part in range(ROUNDS) for copy in _part(part, slow=part in slow)]
        found = judged(flow(copies, passes=len(copies) // LAYERS))
        assert (found["failures"], found["windows"]["verdict"]) == ([], verdict_)


def _part(number: int, *, slow: bool) -> list[LayerCopy]:
    """Return half a second of copies, with a third of the bandwidth where it is slow."""
    machine = Machine(copying=0.030, computing=0.010) if slow else MACHINE
    copies = machine.prefetched()[: round(0.48 / machine.copying)]
    return [_later(copy, 0.48 * number) for copy in copies]


def _later(copy: LayerCopy, seconds: float) -> LayerCopy:
    return msgspec.structs.replace(copy, begun=copy.begun + seconds)


@pytest.mark.parametrize(
    ("changes", "more", "sentence"),
    [
        ({"spans": (TimeSpan(begun=1e9, ended=1e9 + 0.9),)}, {}, "sampled for less"),
        ({"passes": PASSES + 1}, {}, "other bytes than those that stream"),
        ({"streamed": SIZE}, {}, "other bytes than those that stream"),
        ({}, {"fastest": 0.75 * PLAIN}, "faster than the fastest copy by hand"),
        ({"runs": ((1, 2), (1, 3))}, {}, "made different tokens"),
        ({}, {"limit_gb": 1 / 1024}, "more than its limit"),
        ({"copies": (), "passes": 0}, {}, "No layer was copied: nothing streams."),
    ],
)
def test_what_else_fails_a_flatline(changes: dict[str, Any], more: dict[str, Any], sentence: str) -> None:
    found = judged(replace(flow(MACHINE.prefetched()), **changes), **more)
    assert not found["passed"]
    assert sentence in " ".join(found["failures"])


# --- a verdict that is left open -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "ours", "theirs", "decided"),
    [
        (1.0, 0.0, 0.0, "holds"),
        (0.8, 0.0, 0.0, "refuted"),
        (0.8, 0.2, 0.0, "undecided"),
        (0.5, 0.2, 0.2, "refuted"),
        (0.95, 0.0, 0.1, "undecided"),
        (1.2, 0.2, 0.2, "holds"),
        (0.8, None, None, "refuted"),
    ],
)
def test_no_verdict_is_one_that_waiting_for_a_core_could_have_turned(
    rate: float, ours: float | None, theirs: float | None, decided: str
) -> None:
    whole = flow(MACHINE.prefetched())
    loaded = replace(whole, without_core=None if ours is None else ours * whole.seconds)
    found = judged(loaded, plain=PLAIN / rate, fastest=2 * PLAIN, bar={"without_core": theirs})
    assert found["windows"]["verdict"] == decided
    assert (found["failures"], len(found["undecided"])) == (
        [verdict.TOO_FEW] if decided == "refuted" else [],
        int(decided == "undecided"),
    )
    assert found["passed"] == {"holds": True, "refuted": False}.get(decided, found["passed"])
    assert isinstance(found["passed"], Unmeasured) == (decided == "undecided")
    if decided == "undecided":
        assert "were without a core for" in found["undecided"][0]


def test_an_interval_with_the_bar_inside_decides_nothing() -> None:
    rounds = (PLAIN, 1.25 * PLAIN) * 4 + (PLAIN,)
    found = judged(flow(MACHINE.prefetched()), bar={"rounds": rounds})
    assert (found["windows"]["verdict"], found["failures"]) == ("undecided", [])


def test_few_or_short_rounds_decide_nothing() -> None:
    """A failure is one though the windows are undecided."""
    few = judged(flow(MACHINE.prefetched()), bar={"rounds": (PLAIN,) * 5})
    assert few["undecided"] == ["5 rounds are too few for an interval."]
    assert judged(flow(MACHINE.prefetched(), runs=((1,), (2,))), bar={"rounds": (PLAIN,) * 5})["passed"] is False
    whole = flow(MACHINE.prefetched())
    short = replace(whole, spans=tuple(replace(span, ended=span.begun + 0.04) for span in whole.spans))
    found = judged(short, "pcie_flatline.sample_duration_seconds=0.1", bar={"rounds": (0.0,) * ROUNDS})
    assert "shorter than a window" in found["undecided"][0]
    ours_alone = judged(short, "pcie_flatline.sample_duration_seconds=0.1")
    assert (ours_alone["windows"]["verdict"], ours_alone["failures"]) == ("undecided", found["failures"])


def test_a_configured_bar_is_held_against_all_windows() -> None:
    whole = flow(MACHINE.prefetched())
    assert judged(whole, bar={"measured_here": False, "rounds": ()})["passed"] is True
    assert judged(whole, plain=2 * PLAIN, bar={"measured_here": False})["failures"] == [verdict.TOO_FEW]


# --- the bar ---------------------------------------------------------------------------------------------------------


def by_hand(rate: float, stalled: float = 0.0) -> HandStreamed:
    copies = [MovedBytes(begun=n * 0.01, seconds=0.002, nbytes=int(rate * 0.01)) for n in range(100)]
    alone = [MovedBytes(begun=5.0, seconds=0.001, nbytes=int(rate * 0.01))]
    span = TimeSpan(begun=0.0, ended=1.0)
    more = {"stalled": stalled, "beside": 100 * 0.002 - stalled}
    return HandStreamed(weights=1, device="cpu", copies=copies, alone=alone, spans=[span], **more)


def test_without_a_gpu_the_bar_is_what_plain_pytorch_attains_with_both_at_once() -> None:
    bar = verdict.bar_of(wanted(), by_hand(100.0 * MIB), gpu=False)
    assert bar.required == pytest.approx(verdict.OF_BOTH * 100.0)
    assert bar.rounds == pytest.approx((100.0,))
    assert bar.fastest == pytest.approx(1000.0), "a copy alone, which may be faster"


def test_the_overlap_by_hand_is_that_of_copies_which_were_not_waited_for() -> None:
    assert by_hand(1.0).together == pytest.approx(1.0)
    assert by_hand(1.0, stalled=0.15).together == pytest.approx(0.25)
    assert by_hand(1.0, stalled=0.2).together == pytest.approx(0.0), "in turns"


def test_a_wait_longer_than_its_copy_hides_no_turns() -> None:
    """A thread that waits for a core begins its copy late, and the wait is longer than the copy."""

    class Waiting(HandStreamed):
        def _ask(self, verb: str, **asked: Any) -> dict[str, Any]:
            rows = [(10, 0.002, 0.01 * n, 0.003) for n in range(9)] if verb == "generate" else []
            return {"copies": rows, "begun": 0.0, "ended": 0.1, "seconds": 0.1, "tokens": [1]}

        def _waited(self) -> float | None:
            return 0.0

    hand = Waiting(weights=1, device="cpu")
    hand.round()
    assert hand.together == 0.0
    turns = judged(flow(MACHINE.in_turns()), plain=1.0, bar={"together": hand.together})
    assert turns["failures"] == [verdict.TURNS]


def test_on_a_gpu_the_bar_is_the_configured_one() -> None:
    assert verdict.bar_of(wanted(), by_hand(1.0), gpu=True).required == 20_000


def test_a_wait_for_a_copy_is_noted_with_it_unless_it_was_over() -> None:
    source, copier = torch.ones(8), HostCopier()
    arrival = copier.begin([source], [torch.zeros(8)])
    arrival.result()
    copier.wait(arrival)
    assert (arrival.result().stalled, copier.samples) == (0.0, [arrival.result()])
    late: Future[Sample] = Future()
    late.set_result(Sample(nbytes=1))
    late.done = lambda: False
    copier.wait(late)
    assert late.result().stalled > 0
