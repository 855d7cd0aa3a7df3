"""Sentences of the original are held against readings of runs, at the sizes at which these were made."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_evaluation import machine, pressure, report
from djinn_evaluation.claims.judging import FieldSource, NotMeasured, Results, StatedClaim, answers
from djinn_evaluation.claims.table import CLAIMS, SIZES
from djinn_evaluation.course import Course
from djinn_evaluation.whitebox import trials
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.units import GIB
from tests.faults.inside import OURS_ALONE, Inside
from tests.faults.test_keys import TRIALS
from tests.threads import one_thread

Values = dict[str, Any]


def six(reading: Any) -> list[Any]:
    return [reading] * 6


def speed(token: float) -> Values:
    verdict = "holds" if token > 0.92 else "refuted"
    return {
        "median": token,
        "low": token - 0.02,
        "high": token + 0.02,
        "count": 6,
        "confidence": 0.97,
        "verdict": verdict,
    }


def swaps(out: float, back: float) -> list[Values]:
    ways = {"out": out, "in": back}
    return [{"direction": way, "gb_per_s": rate * 1e9 / GIB} for way, rate in ways.items() for _ in range(6)]


def kept(equal: bool) -> list[Values]:
    """Six repetitions of an agent in several ways; what is computed again need not have the same bits."""
    ways = (("lru", True), ("hinted", equal), ("recompute", False))
    return [{"way": way, "repetition": at, "bits_equal_alone": bits} for way, bits in ways for at in range(6)]


def hinted(lower: str) -> Values:
    return {"way": "hinted", "first_token": {"p99": {"value": 0.5, "lower": lower}}}


def evicted(*moments: float, back: bool = True) -> list[Values]:
    """Sessions that leave at these moments, in their order, and come back later."""
    left = [{"direction": "out", "timestamp": at, "session": f"session {n + 1}"} for n, at in enumerate(moments)]
    returned = [{**event, "direction": "in", "timestamp": event["timestamp"] + 5} for event in left]
    return left + returned if back else left + returned[1:]


ON_A_GPU = {"device": "cuda:0"}
SPAWNED = [{"session": number, "timestamp": float(number)} for number in (1, 2, 3, 4)]
# Values with which each claim holds.
HOLDING: dict[int, Values] = {
    1: {"accuracy": [100.0, 100.0], "equal": [True, True]},
    2: {
        **{name: [100.0, 100.0] for name in ("accuracy", "other_accuracy")},
        **{name: [True, True] for name in ("equal", "other_equal")},
        "model": "meta-llama/Llama-2-13b-hf",
        "other_model": "mistralai/Mistral-7B-v0.1",
    },
    3: {"shapes": [[1, 512, 768]] * 2, "equal": [True, True]},
    4: {"percent": 0.39, "changed": True, "repeats": True},
    5: {"pairs": six([2.5, 2.2])},
    6: {"leaving": six(1.41), "still": six(1.4)},
    7: {"copies": six(7.0), "stopped": six(100.0), "copied": six(99.0)},
    8: {"times": six(2.2)},
    9: {"pairs": six([100.0, 100.5]), "waited": 0.0},
    10: {"bytes": [0, 0]},
    11: {"rates": six(16e9 / GIB), **ON_A_GPU},
    12: {"ended": [True, True], "equal": [True, True]},
    13: {"held": [24.3, 24.3], "moved": [0.0, 0.0], "stopped": [24.3, 24.3]},
    14: {"asleep": [0.5, 0.5], "before": [24.0, 24.0], "released": [True, True], **ON_A_GPU},
    15: {"layers": 36, "width": 5120, "inner": 13824, "vocabulary": 32000},
    16: {
        **{name: [4, 4] for name in ("asked", "spawned", "alive")},
        "events": [evicted(3.5, 3.9)] * 2,
        "progression": [SPAWNED] * 2,
        "capacity": [10.0, 10.0],
        "demand": [11.0, 11.0],
        "session": [2.0, 2.0],
        "equal": [True, True],
    },
    17: {
        "plateau": [True, True],
        "samples": [[[0.0, 60.0], [1.0, 78.0]]] * 2,
        "capacity": [80.0, 80.0],
        "hertz": [20.0, 20.0],
    },
    18: {"events": swaps(20.0, 30.0), **ON_A_GPU},
    19: {"status": ["error", "error"], "demand": [1.0, 1.0], "capacity": [2.0, 2.0]},
    20: {**{name: [True, True] for name in ("bitwise", "same_device", "likeliest")}, "norm": [0.0, 0.0]},
    21: {"rates": [six(25_000.0)] * 2, "seconds": [12.0, 12.0], "failures": [[], []], "device": ["cuda:0", "cuda:0"]},
    22: {"rates": six(23e9 / GIB), **ON_A_GPU},
    23: {"equal": [True, True], "out": [1, 1], "back": [1, 1]},
    24: {"agents": kept(True), "comparisons": [hinted("holds")]},
    25: {"tokens": [speed(0.95)], "logits": six(True), "bar": 0.9},
    26: {"slab": [72.0, 72.0], "limit": [72.0, 72.0]},
    27: {"stops": [False, False], "initialized": [True, True]},
    28: {"seconds": six(0.5)},
    29: {"equal": [True, True]},
}
NEVER_HOLDS = {29}  # one machine cannot settle what is said of two
ON_ANOTHER_DEVICE = {"same_device": [True, False], "norm": [0.0, 1.0], "likeliest": [True, False]}
# For each reading a value that changes the verdict; with others first where it matters only then.
CHANGED: dict[int, dict[str, Any]] = {
    1: {"accuracy": [100.0, 99.0], "equal": [True, False]},
    2: {
        **{name: [99.0] for name in ("accuracy", "other_accuracy")},
        **{name: [False] for name in ("equal", "other_equal")},
        **dict.fromkeys(("model", "other_model"), "demo"),
    },
    3: {"shapes": [[512, 768]] * 2, "equal": [False, True]},
    4: {"percent": 0.0, "changed": False, "repeats": False},
    5: {"pairs": six([2.2, 2.5])},
    6: {"leaving": six(2.4), "still": six(0.4)},
    7: {"copies": six(20.0), "stopped": six(120.0), "copied": six(80.0)},
    8: {"times": six(9.0)},
    9: {"pairs": six([100.0, 103.0]), "waited": ({"pairs": six([100.0, 103.0])}, 0.05)},
    10: {"bytes": [0, 8]},
    11: {"rates": six(32e9 / GIB), "device": "cpu"},
    12: {"ended": [True, False], "equal": [False, True]},
    13: {"held": [20.0, 20.0], "moved": [5.0, 0.0], "stopped": [30.0, 30.0]},
    14: {"asleep": [24.0, 24.0], "before": [1.0, 1.0], "released": [True, False], "device": "cpu"},
    15: {"layers": 40, "width": 6000, "inner": 30_000, "vocabulary": 2_000_000},
    16: {
        "asked": [4, 5],
        "spawned": [4, 3],
        "alive": [3, 4],
        "events": [evicted(3.5, 3.9), []],
        "progression": [SPAWNED, [{"session": 1, "timestamp": 0.0}] * 4],
        "capacity": [8.0, 10.0],
        "demand": [11.0, 13.0],
        "session": [0.5, 2.0],
        "equal": [True, False],
    },
    17: {
        "plateau": [True, False],
        "samples": [[[0.0, 81.0]], [[0.0, 78.0]]],
        "capacity": [80.0, 70.0],
        "hertz": [20.0, 5.0],
    },
    18: {"events": swaps(5.0, 30.0), "device": "cpu"},
    19: {"status": ["error", "success"], "demand": [1.0, 3.0], "capacity": [0.5, 2.0]},
    20: {
        "bitwise": [True, False],
        "same_device": ({"bitwise": [True, False]}, [True, False]),
        "norm": (ON_ANOTHER_DEVICE, [0.0, 0.01]),
        "likeliest": (ON_ANOTHER_DEVICE, [True, True]),
    },
    21: {
        "rates": [six(25_000.0), six(10_000.0)],
        "seconds": [12.0, 5.0],
        "failures": [[], ["Tokens differ."]],
        "device": ["cuda:0", "cpu"],
    },
    22: {"rates": six(12e9 / GIB), "device": "cpu"},
    23: {"equal": [False, True], "out": [0, 1], "back": [1, 0]},
    24: {"agents": kept(False), "comparisons": [hinted("refuted")]},
    25: {"tokens": [speed(0.95), speed(0.8)], "logits": [True, False], "bar": 0.99},
    26: {"slab": [0.0, 0.0], "limit": [200.0, 200.0]},
    27: {"stops": [True, False], "initialized": [False, False]},
    28: {"seconds": six(3.0)},
    29: {"equal": [True, False]},
}
each = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"claim-{claim.number}")


def test_every_sentence_is_answered_once() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 30))


@each
def test_a_claim_holds_where_its_readings_say_so(claim: StatedClaim) -> None:
    expected = "undecided" if claim.number in NEVER_HOLDS else "holds"
    assert claim.verdict_on(HOLDING[claim.number]).verdict == expected


@each
def test_a_change_of_any_reading_changes_the_verdict(claim: StatedClaim) -> None:
    assert claim.reads.keys() == HOLDING[claim.number].keys() == CHANGED[claim.number].keys()
    for name, change in CHANGED[claim.number].items():
        first, value = change if isinstance(change, tuple) else ({}, change)
        before = {**HOLDING[claim.number], **first}
        after = claim.verdict_on({**before, name: value})
        assert after.verdict != claim.verdict_on(before).verdict, name
        assert after.verdict == "holds" or after.reason, name


@each
def test_one_repetition_decides_nothing(claim: StatedClaim) -> None:
    """But for arithmetic, which a repetition cannot change."""
    found = claim.verdict_on(HOLDING[claim.number])
    assert found.repetitions >= 2 or (found.repetitions, found.reason) == (0, "by arithmetic")
    if claim.number in OF_SEVERAL_IN_EACH:
        return
    for readings in (HOLDING[claim.number], HOLDING[claim.number] | plainly_changed(claim)):
        once = {name: value[:1] if isinstance(value, list) else value for name, value in readings.items()}
        assert claim.verdict_on(once).verdict == "undecided", once


OF_SEVERAL_IN_EACH = {4, 15, 25}  # two runs compared, arithmetic, the six repetitions of an interval: in each value


def plainly_changed(claim: StatedClaim) -> Values:
    return {name: change for name, change in CHANGED[claim.number].items() if not isinstance(change, tuple)}


@each
def test_what_is_wrong_in_one_repetition_alone_is_no_longer_held(claim: StatedClaim) -> None:
    """Whichever it is: the first is not judged for all, nor the last."""
    readings = HOLDING[claim.number]
    judged = () if claim.number in BY_INTERVAL else (name for name in plainly_changed(claim) if name in WRONG_ONCE)
    for name in judged:
        for at, right in enumerate(readings[name] if isinstance(readings[name], list) else ()):
            wrong = [*readings[name][:at], WRONG_ONCE[name](right), *readings[name][at + 1 :]]
            found = claim.verdict_on({**readings, name: wrong})
            assert (found.verdict, bool(found.reason)) == ("refuted", True), (name, at)


BY_INTERVAL = {18}  # its events are times, of which one alone changes nothing
WRONG_ONCE: dict[str, Any] = {
    **dict.fromkeys(("equal", "other_equal", "ended", "released", "bitwise", "plateau", "stops"), lambda one: not one),
    **dict.fromkeys(("accuracy", "other_accuracy"), lambda one: one - 1),
    **dict.fromkeys(("out", "back", "spawned", "alive"), lambda one: one - 1),
    **dict.fromkeys(("asleep", "moved"), lambda one: one + 20),
    "bytes": lambda one: one + 1,
    "events": lambda one: one[:-1],
    "status": lambda one: "success",
    "slab": lambda one: one / 2,
    "samples": lambda one: [[seconds, gigabytes / 2] for seconds, gigabytes in one],
}


@each
def test_without_its_run_a_claim_is_undecided_and_says_why(claim: StatedClaim, tmp_path: Path) -> None:
    found = claim.judged(Results(folder=tmp_path))
    if claim.number == 15:
        assert (found.verdict, found.value) == ("refuted", pytest.approx(102.4, abs=0.1))
    else:
        assert found.verdict == "undecided"
        assert "there is no run " in found.reason


def test_agents_of_one_repetition_are_too_few_and_not_open() -> None:
    claim = next(one for one in CLAIMS if one.number == 24)
    once = [agent for agent in kept(True) if agent["repetition"] == 0]
    for lower in ("undecided", "holds", "refuted"):
        found = claim.verdict_on({"agents": once, "comparisons": [hinted(lower)]})
        assert (found.verdict, found.repetitions) == ("undecided", 1)
        assert found.reason.startswith("fewer than six repetitions")


@pytest.mark.parametrize(
    ("number", "values", "verdict"),
    [
        (7, {"copies": six(7.0), "stopped": six(100.0), "copied": six(99.0)[:-1]}, "undecided"),
        (21, {"rates": [[], []], "seconds": [0.0, 0.0], "device": ["cuda:0"] * 2}, "undecided"),
        (18, {"events": swaps(20.0, 30.0)[:6], **ON_A_GPU}, "undecided"),
        (24, {"agents": kept(True), "comparisons": []}, "undecided"),
        (25, {"tokens": [speed(0.95)], "logits": [True], "bar": 0.9}, "undecided"),
    ],
    ids=[
        "broken off within a turn",
        "no window",
        "nothing came back",
        "nothing compared",
        "one answer",
    ],
)
def test_readings_that_are_not_whole_decide_nothing(number: int, values: Values, verdict: str) -> None:
    """A run that was broken off is judged too, with all the others."""
    found = next(one for one in CLAIMS if one.number == number).verdict_on(values)
    assert found.verdict == verdict
    assert found.reason


def test_a_bar_that_is_missed_is_told_with_its_own_median() -> None:
    """The value that is told may be another one, here the milliseconds of the copies."""
    claim = next(one for one in CLAIMS if one.number == 7)
    found = claim.verdict_on({"copies": six(7.0), "stopped": six(100.0), "copied": six(80.0)})
    assert (found.verdict, found.value) == ("refuted", 7.0)
    assert found.reason == (
        "the median of a neighbour's speed with the copies over that without is 0.8, not at least 0.95"
    )


SEVEN = {"pairs": [[100.0, 100.0 + number] for number in range(7)], "waited": 0.0}
LEFT_OPEN = {"tokens": [{**speed(0.9), "low": 0.7, "high": 1.1}, speed(0.8)]}


@pytest.mark.parametrize(
    ("number", "values", "verdict", "reason"),
    [
        (16, {"events": [evicted(3.5, 3.9, back=False)] * 2}, "refuted", "a session that left did not come back"),
        (16, {"events": [evicted(1.5, 3.9)] * 2}, "refuted", "3 fit, and the first eviction came with session 2"),
        (25, LEFT_OPEN, "refuted", "the median of a model's speed over that of both at once is 0.8, not at least 0.9"),
        (17, {"samples": [[[0.0, 40.0], [1.0, 40.0]]] * 2}, "refuted", "memory stayed at 50 % of the capacity"),
        (17, {"hertz": [20.0, 5.0]}, "undecided", "memory was sampled at less than 10 Hz"),
        (17, {"hertz": [5.0, 20.0]}, "undecided", "memory was sampled at less than 10 Hz"),
        (17, {"hertz": [5.0, 20.0], "plateau": [True, False]}, "refuted", "no plateau"),
        (9, SEVEN, "undecided", "the interval has the bar inside; it needs a GPU"),
    ],
    ids=[
        "does not come back",
        "leaves before no more fit",
        "one too slow beside one left open",
        "a plateau far below",
        "others had the cores for a second",
        "or in the first run",
        "and what the other samples refute stays refuted",
        "a timing that the interval leaves open",
    ],
)
def test_a_verdict_names_what_decides(number: int, values: Values, verdict: str, reason: str) -> None:
    claim = next(one for one in CLAIMS if one.number == number)
    found = claim.verdict_on({**HOLDING[number], **values})
    assert (found.verdict, found.reason) == (verdict, reason)


class ClockOfRuns:
    """A clock that only runs move on, so that no other work of the machine can: each takes a tenth of a second, and
    with the planted fault half a second more where it ends in a stop."""

    def __init__(self, *, slow_stops: bool) -> None:
        self.seconds, self._slow_stops, self._run = 0.0, slow_stops, RemoteSession.run

    def __call__(self) -> float:
        return self.seconds

    def timed(self, work: Any) -> Any:
        begun, made = self.seconds, work()
        return made, 1000 * (self.seconds - begun)

    def run(self, session: RemoteSession, prompt: Any, **options: Any) -> Any:
        found = self._run(session, prompt, **options)
        self.seconds += 0.6 if self._slow_stops and isinstance(found, Paused) else 0.1
        return found


@pytest.mark.parametrize(("slow_stops", "verdict"), [(True, "refuted"), (False, "holds")])
def test_a_planted_slow_stop_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_stops: bool, verdict: str
) -> None:
    clock = ClockOfRuns(slow_stops=slow_stops)
    monkeypatch.setattr(RemoteSession, "run", lambda session, prompt, **options: clock.run(session, prompt, **options))
    monkeypatch.setattr(trials, "timed", clock.timed)
    monkeypatch.setattr(trials, "perf_counter", clock)
    monkeypatch.setattr(machine, "seconds_without_core", lambda pids: 0.0)
    inside = Inside(tmp_path)
    with one_thread():
        ran = inside.run(
            "whitebox", *TRIALS, "experiment.overhead_pairs=6", "experiment.num_trials=2", flags=OURS_ALONE
        )
    ran.folder.rename(tmp_path / "whitebox")
    found = {row["claim"]: row for row in answers(Results(folder=tmp_path), CLAIMS)["claims"]}
    assert found[9]["verdict"] == verdict, found[9]
    assert (found[9]["interval"]["low"] > 100) is slow_stops
    assert found[1]["verdict"] == "holds at this size", "the bits are right all the same"
    assert found[1]["reason"].startswith("positions: 20 here, 512 in the sentence")
    assert min(found[28]["beside"]["bytes"]) > 0
    assert found[28]["interval"]["low"] > 4 * 0.02, "two requests over a line that takes 20 ms each way"


def test_the_report_has_every_sentence_and_its_answer(tmp_path: Path) -> None:
    found = answers(Results(folder=tmp_path), CLAIMS)
    assert found["summary"] == {"holds": 0, "holds at this size": 0, "refuted": 1, "undecided": 28}
    told = dict(report.scalars(found))
    assert len([name for name in told if name[0].isdigit()]) == 29
    assert told["15. 27 GB + 50 x 1.3 GB = 92 GB on 80 GB"].startswith("refuted; 102.369 GiB; ")
    (grid,) = report.grids(found)
    assert len(grid[2]) == 29


def test_a_value_is_found_by_its_path_or_the_reason_is(tmp_path: Path) -> None:
    for run, entries in (("one", [{"ms": 1}, {"ms": 2}]), ("two", [{"ms": 3}])):
        (tmp_path / run).mkdir()
        fields = {"status": "error", "error": "It broke.", "found": {"entries": entries, "gpu": None}}
        told = {**fields, "reasons": {"found.gpu": "no GPU"}}
        (tmp_path / run / "found.json").write_text(json.dumps(told))
    results = Results(folder=tmp_path)
    assert results.value(FieldSource.of("one+two/found.json: found.entries[].ms")) == [1, 2, 3]
    assert results.value(FieldSource.of("one/found.json: status")) == "error"
    assert results.read("one/found.json: found.entries[].ms & two/found.json: status") == [1, 2, "error"]
    for spelled, why in (
        ("one/found.json: found.gpu", "one has not measured found.gpu: no GPU"),
        ("two/found.json: other.ms", "two has no other.ms: It broke."),
        ("three/found.json: status", "there is no run three with a found.json"),
    ):
        with pytest.raises(NotMeasured, match=why):
            results.value(FieldSource.of(spelled))


@pytest.mark.parametrize(("number", "missed"), [(16, {"sessions_alive_max": 3}), (17, {"plateau_achieved": False})])
def test_a_run_of_pressure_that_missed_or_was_cut_short_decides_nothing(
    number: int, missed: dict[str, Any], tmp_path: Path
) -> None:
    """The file of either says `partial`. One that passed refutes by its own fields."""
    claim, results = next(one for one in CLAIMS if one.number == number), Results(folder=tmp_path, code=None)
    whole = {spelled.rpartition(" ")[2]: HOLDING[number][name][0] for name, spelled in claim.reads.items()}
    for name in ("pressure", "pressure_again"):
        (tmp_path / name).mkdir()
        course = Course(folder=tmp_path / name, log=logging.getLogger("test"))
        course.write(pressure.FILE, {**whole, "status": "success"})
    assert claim.judged(results).verdict in ("holds", "holds at this size")
    course.write(pressure.FILE, {**whole, **missed, "status": "success"})
    assert claim.judged(results).verdict == "refuted"
    course.write(pressure.FILE, {**whole, **missed, "status": "partial", "failures": ["It missed."]})
    assert claim.judged(results).reason == "pressure_again failed: It missed."
    sums: Any = SimpleNamespace(
        sessions=4, demand=11 * GIB, capacity=10 * GIB, per_session=2 * GIB, capacity_imposed=True
    )
    swaps: Any = SimpleNamespace(events=evicted(3.5, 3.9, back=False), latencies=list, first_out=3.5)
    so_far = {**pressure._so_far(sums, SPAWNED, swaps), "sessions_alive_max": 4}
    course.write_partial(pressure.FILE, pressure.FIELDS, so_far)
    assert claim.judged(results).verdict == "undecided"


sized = pytest.mark.parametrize("claim", [c for c in CLAIMS if c.sizes], ids=lambda c: f"claim-{c.number}")
# What the fields of a run have, and the number that it is read as.
READ: dict[int, list[tuple[Any, float]]] = {
    1: [([7] * 512, 512), ([3, 6, 9, 3, 6, 9], 3), ([1, 1, 2, 2, 3, 3], 3)],
    2: [([10, 20, 30], 30), ([7] * 100, 100)],
    3: [([3, 6, 9], 9), ([[1, 512, 768], [1, 128, 768]], 128), ([[1, 512, 768], [1, 512, 128]], 128)],
    4: [(6, 6), (0.5, 0.5)],
    10: [(70102, 70102)],
    13: [(0.36, 0.36)],
    16: [([50, 12], 12), (4, 4)],
    17: [([79.6, 40.0], 40)],
    18: [([0, 2_000_000, 1_000_000], 1e6)],
    19: [([6, 2], 2)],
    20: [([0.007, 130.385], 70)],
    23: [([30_100, 3_000], 3)],
    24: [([8, 80], 80)],
    26: [([72.0, 16.4], 16.4), ([25.146, 25.146], 27), ([1.2107, 1.2107], 1.3)],
}


def judged(claim: StatedClaim, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the verdict where the fields of the sizes have these values; None for one that is not there."""
    held = {spelled: HOLDING[claim.number][name] for name, spelled in claim.reads.items()}

    def read(self: Results, spelled: str) -> Any:
        found = {**held, **values}[spelled]
        if found is None:
            raise NotMeasured("it is not there")
        return found

    monkeypatch.setattr(Results, "read", read)
    monkeypatch.setattr(Results, "fault", lambda self, reads, refused: None)
    monkeypatch.setattr(Results, "reached_over_a_line", lambda self, reads: False)
    return claim.judged(Results(folder=Path()))


@sized
def test_what_holds_at_less_than_a_number_of_the_sentence_holds_at_this_size(
    claim: StatedClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size alone, at its number and below it; a field of the run that is not there is below it too."""
    sizes = {f"field {at}": replace(size, field=f"field {at}", of=float) for at, size in enumerate(claim.sizes)}
    plain = replace(claim, sizes=tuple(sizes.values()))
    reached = {field: size.number * (1 - size.near) for field, size in sizes.items()}
    assert judged(plain, reached, monkeypatch).verdict == "holds"
    for field, size in sizes.items():
        for less in (reached[field] * 0.99, None):
            found = judged(plain, {**reached, field: less}, monkeypatch)
            assert found.verdict == "holds at this size"
            assert found.reason.startswith(f"{size.what}: ")
            assert less is None or f"{size.number:g} in the sentence" in found.reason


def test_a_size_is_read_from_what_runs_write() -> None:
    assert READ.keys() == SIZES.keys() == {claim.number for claim in CLAIMS if claim.sizes}
    for number, readings in READ.items():
        assert len(readings) == len(SIZES[number])
        for size, (found, expected) in zip(SIZES[number], readings, strict=True):
            assert size.of(found) == pytest.approx(expected, rel=1e-3), (number, size.what)


def test_a_refuted_or_undecided_claim_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(one for one in CLAIMS if one.number == 23)
    monkeypatch.setitem(HOLDING, 23, {**HOLDING[23], "equal": [True, False]})
    assert judged(claim, {SIZES[23][0].field or "": [3_000.0]}, monkeypatch).verdict == "refuted"
