"""Faults of weights that stream: copied once and never again, and sent for in the order of text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from djinn_evaluation.baselines.eager import Eager
from djinn_evaluation.configuration.reading import read
from djinn_evaluation.configuration.sections import ValidationFile
from djinn_evaluation.course import Course
from djinn_evaluation.link import WAYS, Link
from djinn_evaluation.validation import logit_equivalence
from djinn_jupyter.engine.memory.weights.streamed import BlockOrder, Ring, Slot
from djinn_jupyter.errors import DjinnError
from tests.device import DEVICE
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.memory.weights.streaming import moved_by, streamed, streamed_desk
from tests.families import build
from tests.faults.inside import moved

PROMPT = tokens(16)
NEW = 3
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def desk() -> Desk:
    """Twelve layers, so that text and numbers are ordered differently."""
    return streamed_desk("llama", layers=12)


def stream(desk: Desk) -> None:
    """Fail unless every pass moves each streamed layer exactly once, and makes the bits of weights that are all
    there."""
    desk.close_all()
    desk.open()
    plain = desk_of("llama", layers=12)
    plain.open()
    expected = plain.outcome(plain.run(PROMPT, NEW))
    whole = streamed(desk).bytes_per_pass
    desk.run(PROMPT, 1)  # learns the order
    for _ in range(2):
        assert moved_by(desk, lambda: desk.run(PROMPT, NEW)) == NEW * whole
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected


Verdict = Callable[[], dict[str, Any]]


@pytest.fixture
def verdict(desk: Desk, tmp_path: Path, monkeypatch: Patch) -> Verdict:
    """The experiment's verdict on the logits of the streamed engine, beside plain Hugging Face."""
    eager = Eager()
    eager.model, eager.device = build("llama", layers=12).eval().to(DEVICE), DEVICE
    whole = {"weight_bytes": streamed(desk).total, "device": str(DEVICE), "fits": True}

    class Near:
        def ask(self, verb: str, **asked: Any) -> dict[str, Any]:
            return eager.logits(asked["tokens"], asked["new"]) if verb == "streamed_logits" else whole

    @contextmanager
    def baseline(module: str) -> Iterator[Near]:
        yield Near()

    @contextmanager
    def engine_for(course: Course, model: str, **options: Any) -> Iterator[Any]:
        with moved(desk) as engine:
            yield engine
        desk.close_all()

    monkeypatch.setattr(logit_equivalence, "baseline", baseline)
    monkeypatch.setattr(logit_equivalence, "engine_for", engine_for)
    fast = Link(copies={way: [(1 << 50, 1.0)] for way in WAYS})
    monkeypatch.setattr(logit_equivalence, "measured_link", lambda course, device: fast)
    monkeypatch.setattr(logit_equivalence, "options_of", lambda course, file: {})
    file = read("validation_small.yaml", ValidationFile, ["server.timeout_seconds=5"])
    course = Course(folder=tmp_path, log=logging.getLogger("test"))
    return partial(logit_equivalence.run, course, file, file.logit_equivalence)


def test_without_a_fault_it_passes(verdict: Verdict) -> None:
    found = verdict()
    assert found["passed"], found["failures"]
    assert len(found["bytes_streamed_per_pass"]) == 3 * logit_equivalence.NEW


def test_a_layer_that_was_copied_faster_than_the_link(verdict: Verdict, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Link, "fastest", lambda link, way: 1.0)
    found = verdict()
    assert not found["passed"]
    assert "faster than the link" in found["failures"][-1]


def test_blocks_sorted_as_text(desk: Desk, verdict: Verdict, monkeypatch: Patch) -> None:
    """The order is 0, 1, 10, 11, 2: a layer missing when needed is fetched, so the bits are right; the bytes tell."""
    stream(desk)
    after = BlockOrder.after

    def sorted_as_text(order: BlockOrder, block: int, count: int) -> list[int]:
        if not order._place:
            return after(order, block, count)
        row: list[Any] = sorted(order._seen, key=str)
        return [row[(row.index(block) + ahead) % len(row)] for ahead in range(1, count + 1)]

    monkeypatch.setattr(BlockOrder, "after", sorted_as_text)
    with pytest.raises(AssertionError):
        stream(desk)
    found = verdict()
    assert found["failures"] == ["A pass moved other bytes than those that stream."]
    assert found["bitwise_equal"]


def test_a_ring_that_copies_nothing_after_the_first_pass(desk: Desk, verdict: Verdict, monkeypatch: Patch) -> None:
    """It requests each layer and copies nothing: the bytes tell. Where a layer that came once counts as there, the
    check of leases finds it."""
    once, holding, submit = {}, Ring._holding, streamed(desk).ring.copy_engine.submit
    with monkeypatch.context() as patch:
        patch.setattr(streamed(desk).ring.copy_engine, "submit", lambda transfers, *others: submit([], *others))
        with pytest.raises(AssertionError):
            stream(desk)
        assert "A pass moved other bytes than those that stream." in verdict()["failures"]

    def remembered(ring: Ring, block: int) -> Slot | None:
        found = holding(ring, block)
        if found is not None:
            once[block] = found
        return once.get(block)

    monkeypatch.setattr(Ring, "_holding", remembered)
    with pytest.raises(DjinnError, match="RingBroken"):
        stream(desk)
