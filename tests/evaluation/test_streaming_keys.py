"""Every key of a streaming file changes the run: the model, what each side is asked for, the verdict or the folder.

A key without an entry here fails.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation.configuration.reading import keys_of, read
from djinn_evaluation.configuration.sections import Streaming
from djinn_evaluation.course import Course
from djinn_evaluation.streaming import experiment, sides
from djinn_evaluation.streaming.sides import Answer, Subject

Patch = pytest.MonkeyPatch
Seen = Callable[[list[str], Patch, Path], Any]
SUBJECT, WEIGHTS = Subject(name="a model", source="a folder"), 1000


class Came(Exception):
    """A run came to the point under test; the arguments are the values seen there."""


def file(settings: list[str]) -> Streaming:
    return read("streaming_small.yaml", Streaming, settings)


def course(folder: Path) -> Course:
    return Course(folder=folder, log=logging.getLogger("test"))


def hand(asked: list[Any]) -> Any:
    def ask(verb: str, **more: Any) -> dict[str, Any]:
        asked.append((verb, more))
        return {"weight_bytes": WEIGHTS, "host_free": 1 << 40, "device_free": 1 << 40}

    return SimpleNamespace(ask=ask)


# --------------------------------------------------------------------------------------------- what is looked at


def models(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return the model that is read, or the shapes that are drawn."""
    patch.setattr(experiment, "subject", lambda course, shape, hand: nullcontext(shape))
    found = []
    for opened in experiment._subjects(course(folder), file(settings), hand([])):
        with opened as chosen:
            found.append(chosen)
    return found


def model_asked(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return the request for the model's sizes."""
    asked: list[Any] = []
    patch.setattr(experiment, "RingSide", _raising)
    with pytest.raises(Came):
        experiment._one(course(folder), file(settings), SUBJECT, hand(asked))
    return asked


def budget(settings: list[str], patch: Patch, folder: Path) -> Any:
    patch.setattr(experiment, "RingSide", _raising)
    with pytest.raises(Came) as came:
        experiment._one(course(folder), file(settings), SUBJECT, hand([]))
    return came.value.args[0]["budget"]


def turns(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return how many tools take turns, and how often."""
    patch.setattr(experiment, "readings", lambda tools, repeat, **more: _raising(tools=len(tools), repeat=repeat))
    with pytest.raises(Came) as came:
        experiment._one(course(folder), file(settings), SUBJECT, hand([]))
    return came.value.args


def bar(settings: list[str], patch: Patch, folder: Path) -> Any:
    answer = Answer(tokens=(1,), logits=np.zeros(2, dtype=np.float32))
    side = SimpleNamespace(answers=[answer], repeated=[], device="cpu", moved=[], opened=None, mean_rate=lambda: 1.0)
    side.facts = lambda: {"bytes_streamed_per_pass": 1}
    patch.setattr(experiment, "RingSide", lambda **given: side)
    patch.setattr(experiment, "readings", lambda tools, repeat, **more: {})
    patch.setattr(experiment, "judged", lambda seen, bar: _raising(bar=bar))
    with pytest.raises(Came) as came:
        experiment._one(course(folder), file(settings), SUBJECT, hand([]))
    return came.value.args


def samples(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return prompt and new tokens of each run by which our side begins."""
    runs: list[Any] = []

    def run(prompt: list[int], *, max_new_tokens: int, ignore_eos: bool) -> Any:
        runs.append((tuple(prompt), max_new_tokens))
        return SimpleNamespace(tokens=[1], logits=np.zeros(2), passes=1)

    session = SimpleNamespace(run=run)
    weights = SimpleNamespace(residency="streamed", layer_copies=0)
    engine: Any = SimpleNamespace(
        entry=None,
        description=SimpleNamespace(device="cpu", vocab_size=50),
        wake=lambda: SimpleNamespace(weights=weights),
        session=lambda name, fresh: session,
        copies=lambda since: (),
    )
    patch.setattr(sides, "finished", lambda done: done)
    side = sides.RingSide(course=course(folder), subject=SUBJECT, file=file(settings), budget=1)
    side._learn(engine)
    return runs


def engine_asked(settings: list[str], patch: Patch, folder: Path) -> Any:
    patch.setattr(sides, "engine_for", lambda course, source, **options: _raising(**options))
    side = sides.RingSide(course=course(folder), subject=SUBJECT, file=file(settings), budget=1)
    with pytest.raises(Came) as came, side.opened():
        pass
    return came.value.args


def cores(settings: list[str], patch: Patch, folder: Path) -> Any:
    """Return whether the cores are asked for before our side's turns."""
    engine = SimpleNamespace(entry=SimpleNamespace(pid=1, is_afar=False))
    patch.setattr(sides, "engine_for", lambda course, source, **options: nullcontext(engine))
    patch.setattr(sides.RingSide, "_learn", lambda side, engine: None)
    patch.setattr(sides, "cores_first", lambda pids, *, asked: _raising(asked=asked))
    side = sides.RingSide(course=course(folder), subject=SUBJECT, file=file(settings), budget=1)
    with pytest.raises(Came) as came, side.opened():
        pass
    return came.value.args


def folders(settings: list[str], patch: Patch, folder: Path) -> Any:
    seen: list[str] = []
    patch.setattr(experiment, "run", lambda course, file: seen.append(course.folder.name) or [])
    given = [f"output_dir={json.dumps(str(folder / 'first'))}", *settings]
    assert cli.main(["experiment", "streaming", "--profile", "small", *(f"--set={one}" for one in given)]) == 0
    return seen


def _raising(**given: Any) -> Any:
    raise Came(given)


# ------------------------------------------------------------------------------------------------------ the keys

CHANGES: dict[str, list[tuple[str, Seen]]] = {
    "model": [("demo", models)],
    "shapes": [("[Llama-2-13b-hf]", models)],
    "divide_widths": [("20", models)],
    "layers": [("7", models)],
    "weights_gb": [("0.5", models)],
    "dtype": [("bfloat16", models), ("bfloat16", model_asked), ("bfloat16", engine_asked)],
    "device_share": [("0.5", budget)],
    "prompt_tokens": [("5", samples)],
    "new_tokens": [("5", samples)],
    "repeat": [("3", turns)],
    "samples": [("3", samples)],
    "least_of_both": [("0.8", bar)],
    "cores_first": [("false", cores)],
    "skip_offloads": [("true", turns)],
    "output_dir": [("{folder}/other", folders)],
}
CASES = [
    pytest.param(key.path, value, seen, id=f"{key.path}-{seen.__name__}")
    for key in keys_of(Streaming)
    for value, seen in CHANGES[key.path]
]


@pytest.mark.parametrize(("key", "value", "seen"), CASES)
def test_a_key_changes_the_run(key: str, value: str, seen: Seen, tmp_path: Path, monkeypatch: Patch) -> None:
    found = []
    for number, setting in enumerate(([], [f"{key}={value}"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patch:
            found.append(seen([text.format(folder=folder) for text in setting], patch, folder))
    assert found[0] != found[1]
