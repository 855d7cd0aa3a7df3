"""The meaning of `streaming`'s figures, on readings made by hand; the order of turns; refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine
from djinn_evaluation.baselines.copies import ALIGNMENT, WAYS, Copying, copier_for
from djinn_evaluation.claims.judging import WAITED, read_interval
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import Streaming
from djinn_evaluation.course import Unmeasured
from djinn_evaluation.link import FASTER, HAND_WAITED
from djinn_evaluation.streaming import sides
from djinn_evaluation.streaming.experiment import OPEN, Evidence, judged, left_open
from djinn_evaluation.streaming.sides import Answer, Repetition, compared, fit_together, readings, watched
from djinn_jupyter.errors import UsageError

SMALL = "streaming_small.yaml"
TIMES = (10.0, 10.1, 10.2, 10.3, 10.4, 10.5)


def side(*, times: tuple[float, ...] = TIMES, factor: float = 1.0, alone: bool = False) -> list[Repetition]:
    found = [Repetition(first=2 * t * factor, token=t * factor, total=5 * t * factor) for t in times]
    return [replace(one, alone=one.token) for one in found] if alone else found


def answer(*changed: tuple[int, float], tokens: tuple[int, ...] = (1, 2)) -> Answer:
    row = np.linspace(0, 9, 10, dtype=np.float32)
    for index, value in changed:
        row[index] += value
    return Answer(tokens=tokens, logits=row)


def evidence(**changes: Any) -> Evidence:
    """A ring as fast as both at once, with the reference's bits."""
    sound = Evidence(
        readings={
            "djinn": side(alone=True),
            "resident": side(factor=0.5),
            "copying_alone": side(factor=0.9),
            "both_at_once": side(alone=True),
        },
        reasons={"accelerate_cpu_offload": "accelerate is not installed"},
        tokens={"djinn": {(1, 2)}, "resident": {(1, 2)}},
        ours=[answer()],
        repeated=[answer()],
        reference=[answer()],
        plain=[answer()],
        same_device=True,
        streamed=1000,
        moved=[1000.0],
        rate=1.0,
        fastest=1.0,
    )
    return replace(sound, **changes)


def verdict(**changes: Any) -> tuple[dict[str, Any], list[str]]:
    return judged(evidence(**changes), bar=0.9)


def test_a_sound_run_has_no_failure_and_its_figures_are_medians() -> None:
    fields, failures = verdict()
    assert failures == []
    ours = fields["sides"]["djinn"]
    assert (ours["token_ms"]["median"], ours["token_ms"]["low"], ours["token_ms"]["high"]) == (10.25, 10.0, 10.5)
    assert ours["start_of_a_pass_ms"]["median"] == 10.25
    assert fields["limit"]["token_ms"]["median"] == pytest.approx(0.9 * 10.25), "copying is the slower of the two"
    assert fields["limit"]["first_token_ms"]["median"] == pytest.approx(0.9 * 20.5)
    assert fields["of_the_limit"]["token"]["median"] == pytest.approx(0.9)
    assert {part: found["verdict"] for part, found in fields["of_both_at_once"].items()} == dict.fromkeys(
        ("first_token", "start_of_a_pass", "token", "end_to_end"), "holds"
    )
    assert fields["sides"]["accelerate_cpu_offload"] == {
        "status": "not_run",
        "reason": "accelerate is not installed",
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"moved": [1000.0, 990.0]}, "other bytes than those that stream"),
        ({"plain": [answer((0, 1e-6))]}, "The reference by hand is not the model"),
        ({"reference": [answer((0, 1e-6))], "plain": []}, "not the reference's; bits decided"),
        ({"repeated": [answer((0, 1e-6))]}, "Repetitions of one prompt gave other logits"),
        ({"tokens": {"djinn": {(1, 2)}, "resident": {(1, 3)}}}, "made different tokens"),
        ({"rate": 1.26}, "faster than the fastest copy by hand"),
    ],
)
def test_each_fault_fails_the_run(changes: dict[str, Any], sentence: str) -> None:
    _, failures = verdict(**changes)
    assert any(sentence in failure for failure in failures), failures


@pytest.mark.parametrize(
    ("rate", "waited", "verdict_then"),
    [(1.24, 0.9, "holds"), (1.26, None, "refuted"), (3.0, 0.5, "refuted"), (1.26, 0.02, "undecided")],
)
def test_a_copy_by_hand_that_waited_for_a_core_judges_no_copy_that_it_could_have_reached(
    rate: float, waited: float | None, verdict_then: str
) -> None:
    """A copy that is left out is a hundred times faster, and so is found on a loaded machine too."""
    copying = [replace(one, without_core=waited) for one in evidence().readings["copying_alone"]]
    fields, failures = verdict(rate=rate, readings={**evidence().readings, "copying_alone": copying})
    assert fields["layer_copies"] == {"verdict": verdict_then, "by_hand_without_core": waited}
    assert failures == ([FASTER] if verdict_then == "refuted" else [])
    assert left_open(fields) == ([HAND_WAITED] if verdict_then == "undecided" else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_by_hand_moves_every_byte_to_the_weights_own_places(way: Any, dtype: torch.dtype) -> None:
    layers = [[torch.randint(-9, 9, (17, number + 2)).to(dtype), torch.tensor(3).to(dtype)] for number in range(3)]
    copier = copier_for(torch.device("cpu"))
    copier.ways = (way,)
    slots = [[torch.zeros(4096, dtype=torch.uint8) for _ in range(2)] for _ in range(2)]
    copying = Copying(copier, layers, slots)
    for number in (0, 1, 2, 0):
        found = copying.take(number)
        assert all(torch.equal(one, other) for one, other in zip(found, layers[number], strict=True))
        assert [one.data_ptr() % ALIGNMENT for one in found] == [one.data_ptr() % ALIGNMENT for one in layers[number]]


def test_what_is_copied_by_hand_goes_by_the_way_that_was_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: one of the ways is slow, whichever it is. Every way's copies count for the fastest."""
    for slow, quick in (WAYS, WAYS[::-1]):

        def late(source: Any, target: Any, slow: Any = slow) -> None:
            time.sleep(0.05)
            slow(source, target)

        copier = copier_for(torch.device("cpu"))
        copier.ways = (late, quick)
        layers = [[torch.ones(64)], [torch.zeros(64)]]
        copying = Copying(copier, layers, [[torch.zeros(4096, dtype=torch.uint8)] for _ in range(2)])
        assert copier.way is quick
        before = len(copier.samples)
        assert copying.copy() < 0.1, "the quickest's seconds"
        assert len(copier.samples) == before + 2 * 2
        assert copier.way is quick


@pytest.mark.parametrize("part", ["first", "token", "total", "alone"])
def test_a_ring_that_is_slower_than_the_bar_fails_by_its_part(part: str) -> None:
    slow = [replace(one, **{part: getattr(one, part) * 1.3}) for one in side(alone=True)]
    fields, failures = verdict(readings={**evidence().readings, "djinn": slow})
    named = {"first": "first_token", "token": "token", "total": "end_to_end", "alone": "start_of_a_pass"}[part]
    assert failures == [f"Below 0.9 of what both at once attain, the whole interval: {named}."]
    assert fields["of_both_at_once"][named]["verdict"] == "refuted"


def test_an_interval_with_the_bar_inside_is_left_open_by_its_part() -> None:
    assert left_open(verdict()[0]) == []
    factors = cycle((1.0, 1.3))
    uneven = [replace(one, token=one.token * next(factors)) for one in side(alone=True)]
    fields, failures = verdict(readings={**evidence().readings, "djinn": uneven})
    assert failures == []
    assert left_open(fields) == [f"{OPEN}: token."]
    ours = side(times=(*TIMES[:5], 50.0), alone=True)  # one slow repetition is no failure either
    fields, failures = verdict(readings={**evidence().readings, "djinn": ours})
    assert (failures, fields["of_both_at_once"]["token"]["verdict"]) == ([], "undecided")


@pytest.mark.parametrize(
    ("factor", "waited", "verdict_then"),
    [
        (1.2, {"djinn": 0.0, "both_at_once": 0.5}, "refuted"),
        (1.2, {"djinn": 0.1, "both_at_once": 0.0}, "undecided"),
        (1.2, {"djinn": None, "both_at_once": None}, "refuted"),
        (1.02, {"djinn": 0.5, "both_at_once": 0.0}, "holds"),
        (1.02, {"djinn": 0.0, "both_at_once": 0.1}, "undecided"),
    ],
)
def test_no_verdict_is_one_that_waiting_for_a_core_could_have_turned(
    factor: float, waited: dict[str, float | None], verdict_then: str
) -> None:
    """Ours that never waited would be nearer to the bar, and so would both at once be faster."""
    slow = {"djinn": side(factor=factor, alone=True), "both_at_once": side(alone=True)}
    found = {name: [replace(one, without_core=waited[name]) for one in slow[name]] for name in slow}
    fields, failures = verdict(readings={**evidence().readings, **found})
    assert {part["verdict"] for part in fields["of_both_at_once"].values()} == {verdict_then}
    assert bool(failures) == (verdict_then == "refuted")
    assert fields["of_both_at_once"]["token"]["without_core"] == waited


def test_a_reading_is_told_with_its_wait_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, clock = iter((5.0, 5.5)), iter((10.0, 12.0))
    monkeypatch.setattr(machine, "seconds_without_core", lambda pids: next(kernel) if pids == [7] else None)
    monkeypatch.setattr(machine, "perf_counter", lambda: next(clock, 13.0))
    once = Repetition(first=1.0, token=1.0, total=1.0)
    assert watched([7], lambda: once)() == replace(once, without_core=0.25)
    assert watched([8], lambda: once)() == once


def test_a_claim_on_a_verdict_that_its_file_leaves_open_is_left_open() -> None:
    """Though its interval alone would hold it."""
    speed = {"median": 0.95, "low": 0.93, "high": 0.97, "count": 9, "confidence": 0.96, "verdict": "undecided"}
    found = read_interval(speed, 0.9, "speeds")
    assert (found.verdict, found.value, found.reason) == ("undecided", 0.95, WAITED)


# --------------------------------------------------------------------------------------------------------- logits


def test_bits_decide_on_one_device_and_the_five_most_likely_on_two() -> None:
    """One unit in the last place of a fortieth of a vocabulary is no other model, and no equal bits either."""
    near, swapped = answer((0, 1e-6)), answer((9, -1.5))
    one = compared([near], [answer()], same_device=True)
    assert (one["passed"], one["decided_by"]) == (False, "bits")
    two = compared([near], [answer()], same_device=False)
    assert (two["passed"], two["decided_by"]) == (True, "five most likely tokens")
    assert not compared([swapped], [answer()], same_device=False)["passed"]
    for here in (True, False):  # of weights that have not arrived: a difference that JSON has
        nothing = compared([answer((3, float("nan")))], [answer()], same_device=here)
        assert (nothing["passed"], nothing["norm_diff"] > 1e300) == (False, True)


def test_an_answer_of_each_repetition_is_compared() -> None:
    """The first is of all samples, the others of the first sample, as often as it was timed."""
    others = answer((3, 1e-6))
    fields, _ = verdict(
        ours=[answer(), others], reference=[answer()] * 2, plain=[answer()] * 2, repeated=[answer(), others]
    )
    assert fields["logits"]["repetitions_passed"] == [False, True, False]


def test_the_start_of_a_pass_has_no_request_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine counts the seconds of its passes; all else of a token asked for by itself is told beside."""
    counted = iter((1.0, 1.020))
    done = SimpleNamespace(tokens=[5, 6], logits=np.zeros(2, dtype=np.float32))

    def run(*asked: Any, on_token: Any = None, **options: Any) -> Any:
        for token in done.tokens if on_token else ():
            on_token(token)
        return done

    engine: Any = SimpleNamespace(
        session=lambda name: SimpleNamespace(run=run),
        wake=lambda: SimpleNamespace(weights=SimpleNamespace(pass_seconds=next(counted))),
    )
    monkeypatch.setattr(sides, "finished", lambda reply: reply)
    monkeypatch.setattr(sides, "timed", lambda work: (work(), 27.0))
    nothing: Any = None
    file: Any = SimpleNamespace(new_tokens=2)
    side = sides.RingSide(course=nothing, subject=nothing, file=file, budget=0, prompts=[[1, 2]])
    assert side._reading(engine).alone == pytest.approx(20.0)
    assert side.outside == [pytest.approx(7.0)]


def test_a_model_without_room_has_no_plain_logits_to_compare_with() -> None:
    without = {name: times for name, times in evidence().readings.items() if name != "resident"}
    fields, failures = verdict(plain=[], readings={**without, "computing_alone": side(factor=0.5)})
    assert failures == []
    assert isinstance(fields["logits"]["reference_is_plain"], Unmeasured)


# ------------------------------------------------------------------------------------------------------------ turns


def test_sides_take_turns_or_come_one_after_another() -> None:
    heard: list[str] = []

    def tool(name: str) -> Any:
        @contextmanager
        def opened() -> Iterator[Mapping[str, Any]]:
            heard.append(f"{name} opens")
            yield {name: lambda: heard.append(name) or Repetition(first=1, token=1, total=1)}
            heard.append(f"{name} ends")

        return opened

    found = readings([tool("a"), tool("b")], 2, together=True, check=lambda: None)
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2}
    assert heard == ["a opens", "b opens", "a", "b", "b", "a", "a", "b", "b ends", "a ends"]
    heard.clear()
    readings([tool("a"), tool("b")], 1, together=False, check=lambda: None)
    assert heard == ["a opens", "a", "a", "a ends", "b opens", "b", "b", "b ends"]
    assert fit_together(10, 4, 82)
    assert not fit_together(10, 4, 80)


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("shapes=[]", "There is nothing to stream"),
        ("device_share=1", "device_share"),
        ("new_tokens=1", "new_tokens"),
        ("repeat=0", "repeat"),
        ("least_of_both=1.1", "least_of_both"),
        ("shape=[a]", "there is no key shape. Did you mean shapes"),
    ],
)
def test_what_cannot_hold_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        read(SMALL, Streaming, [setting])
    assert "\n" not in str(caught.value)


def test_a_shape_that_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal on the command line writes no file."""
    for shape, sentence in (
        ("somebody/elsewhere", "not at hand"),
        ("gpt2", "no key num_attention_heads .* give --random-weights gpt2"),
        ("./nowhere", "no architecture"),
    ):
        with pytest.raises(UsageError, match=sentence):
            sides.configuration_of(shape)
    asked = ["experiment", "streaming", "--profile", "small", "--set", "shapes=[]", "--output-dir", str(tmp_path)]
    assert cli.main(asked) == 1
    assert "nothing to stream" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
