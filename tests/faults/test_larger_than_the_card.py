"""Faults of `streaming`: a reference that is not the model, a ring or a reference that computes before a copy ends.

The engine is a real one of a tiny model with a ring, the baseline by hand its own class, both without a process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.eager import ByHand
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import Streaming
from djinn_evaluation.course import Course
from djinn_evaluation.link import FASTER
from djinn_evaluation.streaming import experiment, sides
from djinn_jupyter.engine.memory.weights.copy_engine import ArrivedCopies, BlockCopy
from tests.device import DEVICE
from tests.engine.desk import Desk
from tests.engine.memory.weights.streaming import SlowCopyEngine, streamed_desk
from tests.families import build
from tests.faults.inside import moved

Patch = pytest.MonkeyPatch
NOT_THE_MODEL = "The reference by hand is not the model: resident its logits are others."
NOT_THE_REFERENCE = "The logits are not the reference's; bits decided."
SHORT = ["model=tiny", "repeat=1", "samples=1", "new_tokens=3"]
SLOW = "Below 0.9 of what both at once attain"  # of a tiny model the time is that of requests


class LateCopies(SlowCopyEngine):
    """A copy engine whose copies end when a caller waits for them; once `early`, only when nothing computes."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.seconds, self._log, self._submitted = False, 1.0, ArrivedCopies(), list[BlockCopy | None]()

    def submit(self, transfers: Any, after: Any, block: int | None = None) -> Any:
        nbytes = sum(target.numel() for _, target in transfers)
        self._submitted.append(None if block is None else BlockCopy(block=block, nbytes=nbytes, seconds=self.seconds))
        return super().submit(transfers, after, block)

    def wait(self, arrival: Any) -> None:
        if not self.early:
            self._end(arrival)

    def copies(self, since: int) -> list[BlockCopy]:
        if self.waiting:
            self._end(self.waiting[-1])
        return list(self._log.since(since))

    def _end(self, arrival: Any) -> None:
        super().wait(arrival)
        over = len(self._submitted) - len(self.waiting)
        for copy in filter(None, self._submitted[:over]):
            self._log.add(copy)
        del self._submitted[:over]


@pytest.fixture(scope="module")
def copy_engine() -> LateCopies:
    return LateCopies()


@pytest.fixture(scope="module")
def desk(copy_engine: LateCopies) -> Desk:
    return streamed_desk("llama", copy_engine=copy_engine)


Failures = Callable[..., list[str]]


@pytest.fixture
def failures(desk: Desk, tmp_path: Path, monkeypatch: Patch) -> Failures:
    """The failures of the experiment, but for its speed; a fault may be planted in the reference's model."""

    def run(fault: Callable[[Any], None] = lambda model: None, *, fits: bool = True) -> list[str]:
        model = build("llama", layers=8).eval().requires_grad_(False)
        fault(model)
        monkeypatch.setattr(weights.ModelAsked, "read", lambda asked: model)
        monkeypatch.setattr(weights.ModelAsked, "empty", lambda asked: build("llama", layers=8))
        monkeypatch.setattr(weights, "device_for", lambda name, nbytes=0: DEVICE)
        monkeypatch.setattr(ByHand, "_fits", lambda by_hand: fits)
        file = read("streaming_small.yaml", Streaming, [*SHORT, "cores_first=false"])
        found = experiment.run(Course(folder=tmp_path, log=logging.getLogger("test")), file)
        return [sentence.removeprefix("tiny: ") for sentence in found if SLOW not in sentence]

    monkeypatch.setattr(experiment, "baseline", _near)
    monkeypatch.setattr(sides, "baseline", _near)
    monkeypatch.setattr(experiment, "OFFLOADS", {})
    monkeypatch.setattr(sides, "TIMEOUT", 60.0)

    @contextmanager
    def engine_for(course: Course, model: str, **options: Any) -> Iterator[Any]:
        with moved(desk) as engine:
            yield engine
        desk.close_all()

    monkeypatch.setattr(sides, "engine_for", engine_for)
    return run


@contextmanager
def _near(module: str) -> Iterator[Any]:
    class Near:
        by_hand, process = ByHand(), SimpleNamespace(pid=-1)

        def ask(self, verb: str, **asked: Any) -> Any:
            return getattr(self.by_hand, verb)(**asked)

    assert module == "eager.ByHand"
    yield Near()


def changed(model: Any) -> None:
    """Change one weight of one layer by a hundredth: a unit in the last place some processors round away."""
    weight = model.model.layers[3].mlp.down_proj.weight.data
    weight[1, 2] *= 1.01


def elsewhere_by_hand(patch: Patch) -> None:
    """Let the hand copy one layer's weights for another's."""
    patch.setattr(ByHand, "_take", lambda by_hand, number, take=ByHand._take: take(by_hand, max(number, 1)))


def test_without_a_fault_it_passes(failures: Failures, tmp_path: Path) -> None:
    """One repetition leaves its bars open."""
    assert failures() == []
    assert json.loads((tmp_path / experiment.FILE).read_text())["status"] == "undecided"
    assert failures(fits=False) == []


def test_a_reference_with_one_weight_changed(failures: Failures) -> None:
    """Resident it is the same wrong model, so the ring's bits alone tell."""
    assert NOT_THE_REFERENCE in failures(changed)
    assert NOT_THE_REFERENCE in failures(changed, fits=False)


def test_a_hand_that_takes_another_layer(failures: Failures, monkeypatch: Patch) -> None:
    elsewhere_by_hand(monkeypatch)
    assert {NOT_THE_MODEL, NOT_THE_REFERENCE} <= set(failures())


def test_a_ring_that_computes_before_a_copy_ends(failures: Failures, copy_engine: LateCopies) -> None:
    copy_engine.early = True
    try:
        assert NOT_THE_REFERENCE in failures()
    finally:
        copy_engine.early = False


def test_a_ring_whose_copies_are_left_out(failures: Failures, copy_engine: LateCopies) -> None:
    """They take no time, which no load of the machine makes undecided."""
    before = copy_engine.copies(0)
    for seconds in (1e-9, 1.0):
        copy_engine.seconds = seconds
        for copy in before:
            copy.seconds = seconds
        assert (FASTER in failures()) == (seconds < 1.0)
