"""As `test_any_argument`: what reads a stop, makes an edit, reads a file, or reaches another engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.edits import as_edit
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.errors import InvalidEdit, UsageError
from tests.client.test_any_argument import LINE, OTHER, VALUES, no_sentence

METRIC = "logit(17)"
Verb = Callable[..., Any]


@pytest.fixture
def session(engine: RemoteEngine) -> dj.RemoteSession:
    """A session that stands at a stop."""
    session = engine.session("stopped", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    return session


def wrong_of(verb: Verb, takes: dict[str, Any], *parameters: str) -> list[tuple[str, object, Exception]]:
    found = []
    for parameter, value in itertools.product(parameters, VALUES):
        found += no_sentence(lambda: verb(**{**takes, parameter: value}), parameter, value)  # noqa: B023
    return found


def test_readings_of_a_stop(session: dj.RemoteSession) -> None:
    assert wrong_of(session.lens, {}, "k", "site", "positions", "tokens") == []
    assert wrong_of(session.effect, {}, "top", "tokens") == []
    assert wrong_of(session.inspect, {}, "site", "positions") == []
    assert wrong_of(session.watched, {"site": "resid_post.1"}, "site", "name") == []
    with pytest.raises(UsageError, match=r"^to is an AttachedEngine, not 'x'\.$"):
        session.move("x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^tokens is a list of texts or whole numbers, not ' Paris'\.$"):
        session.lens(tokens=" Paris")
    assert len(session.lens(tokens=np.array([3, 4])).rows[0].chosen) == 2


def test_edits() -> None:
    direction = {"direction": [1.0]}
    assert wrong_of(dj.scale, {}, "factor") == []
    assert wrong_of(dj.add, {"vector": [1.0]}, "vector", "coef") == []
    assert wrong_of(dj.clamp, {}, "low", "high") == []
    assert wrong_of(dj.norm_match, {"vector": [1.0]}, "coef") == []
    assert wrong_of(dj.orthogonal, direction, "coef") == []
    assert wrong_of(dj.projection_cap, direction, "low", "high") == []
    assert wrong_of(dj.patch_from, {"session": "a"}, "site", "positions") == []
    with pytest.raises(InvalidEdit, match=r"^factor is a number, not 'much'\.$"):
        dj.scale("much")  # type: ignore[arg-type]
    with pytest.raises(InvalidEdit, match=r"^In Python an edit is dj\.scale.*, not 'scale 0\.9'\.$"):
        as_edit("scale 0.9")


def test_files_and_names(engine: RemoteEngine, tmp_path: Path) -> None:
    found = dj.edges(engine, clean=LINE, corrupted=OTHER, metric=METRIC)
    engine.collect([LINE], "z.0", to=tmp_path / "acts")
    assert wrong_of(dj.auroc, {"found": found, "known": [("embed", "logits")]}, "found", "known") == []
    assert wrong_of(dj.reproduce, {"engine": engine, "result": found}, "result", "collection") == []
    assert wrong_of(dj.Activations, {}, "folder") == []
    assert wrong_of(dj.train_probe, {"labels": [0, 1], "to": tmp_path, "collection": 0}, "collection") == []
    trained = {"labels": [0], "to": "", "collection": tmp_path / "acts"}
    assert wrong_of(dj.train_probe, trained, "to") == []
    for add in (engine.add_adapter, engine.add_module, engine.add_transcoders):
        assert wrong_of(add, {"name": "a", "folder": tmp_path / "none"}, "folder") == []
    for remove in (engine.remove_adapter, engine.remove_module):
        assert wrong_of(remove, {"name": "none"}, "name") == []
    with pytest.raises(UsageError, match=r"^'a{59}\.\.\. names no folder here: file name too long\.$"):
        engine.add_adapter("a", "a" * 5000)


def test_the_place_of_an_engine(engine: RemoteEngine) -> None:
    texts = [value for value in VALUES if isinstance(value, str)]  # those that name a machine are looked up
    others = [value for value in VALUES if not isinstance(value, str)]
    for value in (*others, "a" * 5000):
        assert no_sentence(lambda: dj.connect(value), "address", value) == []  # noqa: B023
        assert no_sentence(lambda: dj.beside(engine, value), "where", value) == []  # noqa: B023
    assert len(texts) > 3


def test_a_trace_of_memory(engine: RemoteEngine) -> None:
    for name, value in itertools.product(("hertz", "seconds"), VALUES):
        made: list[MemoryTrace] = []
        asked = {"hertz": 100.0, "seconds": 0.0, name: value}
        assert no_sentence(lambda: made.append(engine.memory_trace(**asked)), name, value) == []  # noqa: B023
        for trace in made:
            trace.stop()
            assert trace.error is None
    for hertz in (0, -1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match=r"^hertz is above 0 and at most 1000 readings a second"):
            engine.memory_trace(hertz=hertz)


def test_a_trace_whose_listener_fails_ends_in_order(engine: RemoteEngine) -> None:
    def heard(trace: MemoryTrace) -> None:
        raise ValueError("not drawn")

    with engine.memory_trace(hertz=100.0, heard=heard) as trace:
        deadline = time.monotonic() + 30.0
        while trace.running and time.monotonic() < deadline:
            pass
    assert str(trace.error) == "The trace has ended, because heard raised ValueError: not drawn."
