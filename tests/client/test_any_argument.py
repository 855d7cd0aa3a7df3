"""Every argument of the verbs that work on many passes, given values of every kind: one sentence, or it works."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, UsageError

LINE, OTHER = (9, 8, 7, 21), (9, 8, 7, 31)
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**70, 1.5, math.nan, -math.inf, "", "2", "x.y", b"x", (), [None], ["x", 1], [[1], [2, 3]],
    [-1], [2**70], {}, {"a": 1}, {1}, object(), lambda *_: None, slice(None), slice("a", 2), np.arange(3),
    np.float32(2), np.array("x"), Path("nowhere"), dj.zero(), range(3), 3j, "~no user of this name", "a\0b",
    "\ud800", "a" * 5000, "\n", np.arange(32.0),
)  # fmt: skip
METRIC = {"metric": "logit(17)"}
SWEEP: dict[str, Any] = {"site": "resid_post", "over": "layer", **METRIC}
Verb = Callable[..., Any]


def verbs(engine: RemoteEngine, folder: Path) -> dict[str, tuple[Verb, dict[str, Any]]]:
    """The verbs, each with arguments that it takes."""
    session = engine.session("s")
    session.run(LINE, max_new_tokens=1)
    return {
        "sweep": (dj.sweep, {"engine": engine, "clean": LINE, "corrupted": OTHER, **SWEEP}),
        "sweep in noise": (dj.sweep, {"engine": engine, "clean": LINE, "noise": dj.noise(1), "samples": 2, **SWEEP}),
        "noise": (dj.noise, {"positions": 1}),
        "collect": (engine.collect, {"prompts": [LINE], "sites": "z.0", "to": folder / "acts"}),
        "loss": (engine.loss, {"prompts": [LINE]}),
        "session.loss": (session.loss, {"prompts": [LINE]}),
        "run": (session.run, {"prompt": LINE, "max_new_tokens": 1}),
        "run samples": (session.run, {"prompt": LINE, "max_new_tokens": 1, "samples": 2, "temperature": 1.0}),
        "path": (dj.path, {"engine": engine, "path": "z -> q.2[0]", "clean": LINE, "corrupted": OTHER, **METRIC}),
        "head_scores": (engine.head_scores, {"prompts": None, "length": 4, "samples": 1}),
        "session": (engine.session, {"name": "another", "fresh": True}),
        "fork": (session.fork, {"name": "fork", "edit": dj.zero(), "site": "v.1", "positions": 1}),
        "steer": (session.steer, {"site": "resid_post.1", "edit": dj.zero()}),
    }


NAMES = (
    "sweep", "sweep in noise", "noise", "collect", "loss", "session.loss", "run", "run samples", "path", "head_scores",
    "session", "fork", "steer",
)  # fmt: skip


ONLY = {"sweep in noise": ("clean", "noise", "samples", "seed"), "run samples": ("samples", "seed", "on_row", "logits")}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_one_sentence(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, takes = verbs(engine, tmp_path)[name]
    verb(**takes)
    names = [one for one in inspect.signature(verb).parameters if one in ONLY.get(name, (one,)) and one != "engine"]
    wrong = []
    for parameter, (number, value) in itertools.product(names, enumerate(VALUES)):
        place = f"{parameter} {number}"
        apart = {"collect": {"to": tmp_path / place}, "fork": {"name": place}}.get(name, {})
        wrong += no_sentence(lambda: verb(**{**takes, **apart, parameter: value}), parameter, value)  # noqa: B023
    assert wrong == []


def no_sentence(call: Callable[[], object], parameter: str, value: object) -> list[tuple[str, object, Exception]]:
    """Return the error of a call with the value that was wrong, where it is no sentence of ours."""
    try:
        call()
    except DjinnError as error:
        return [] if str(error).strip() and "\n" not in str(error) else [(parameter, value, error)]
    except Exception as error:  # noqa: BLE001
        return [(parameter, value, error)]
    return []


def test_a_refusal_names_the_argument_and_what_it_takes(engine: RemoteEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^coefs is a list of numbers, not 1\.$"):
        dj.sweep(engine, clean=LINE, corrupted=OTHER, **SWEEP, coefs=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^samples is a whole number, not '2'\.$"):
        dj.sweep(engine, clean=LINE, noise=dj.noise(1), samples="2", **SWEEP)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^A sweep in noise draws 1 to 10,000 samples, not -1"):
        dj.sweep(engine, clean=LINE, noise=dj.noise(1), samples=-1, **SWEEP)
    with pytest.raises(UsageError, match=r"^sites is a text or a list of texts, not None\.$"):
        engine.collect([LINE], None, to=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^'' names no folder\.$"):
        engine.collect([LINE], "z.0", to="")
    with pytest.raises(UsageError, match=r"^path takes no argument 'window'; its arguments are engine, path, clean, "):
        dj.path(engine, "z -> logits", clean=LINE, edit=dj.zero(), metric="logit(1)", window=3)  # type: ignore[call-arg]
    with pytest.raises(
        UsageError, match=r"^collect cannot be called so \(missing .*'sites'\); its arguments are prompts"
    ):
        engine.collect([LINE], to=tmp_path)  # type: ignore[call-arg]
    said = r"^Prompt 1 \(counted from 0\): A prompt is text or one list of token ids"
    with pytest.raises(UsageError, match=said) as refused:
        engine.loss([LINE, 1.5])
    assert refused.type is UsageError  # and not InvalidEdit
    with pytest.raises(UsageError, match=r"^Prompt 1 \(counted from 0\): tokens: expected array of length <= 1048576"):
        engine.session("s").run([LINE, np.zeros(2**20 + 1, dtype=int)])
    with pytest.raises(UsageError, match=r"^Heads are scored on 1 to 4,096 lines"):
        engine.head_scores(samples=2**70)
    with pytest.raises(UsageError, match=r"^attention is 'eager' or 'sdpa', not 'flash'"):
        engine.session("s", attention="flash")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^Prompt 1 \(counted from 0\) has 1,048,577 tokens, .* most is 1,048,576"):
        engine.collect([LINE, np.zeros(2**20 + 1, dtype=int)], "z.0", to=tmp_path)


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("name", ["sweep", "sweep in noise", "collect", "loss", "session.loss", "path"])
def test_a_seed_that_no_request_can_have_is_named(engine: RemoteEngine, tmp_path: Path, name: str, seed: int) -> None:
    verb, takes = verbs(engine, tmp_path)[name]
    with pytest.raises(UsageError, match=rf"^seed is a whole number from 0 to 2\*\*63 - 1, not {seed}\.$"):
        verb(**takes, seed=seed)


def test_the_seeds_that_follow_for_samples_are_checked_before_the_first_is_swept(engine: RemoteEngine) -> None:
    told: list[object] = []
    asked: dict[str, Any] = {"noise": dj.noise(1), "samples": 2, "seed": 2**63 - 1, **SWEEP}
    with pytest.raises(UsageError, match=rf"^seed is a whole number from 0 to 2\*\*63 - 1, not {2**63}\.$"):
        dj.sweep(engine, clean=LINE, on_progress=lambda *event: told.append(event), **asked)
    assert told == []


def test_numbers_of_numpy_are_numbers(engine: RemoteEngine) -> None:
    coefs = np.linspace(0, 1, 3, dtype=np.float32)
    asked = {**SWEEP, "site": "resid_post.1", "over": np.array(["coef"]), "coefs": coefs, "seed": np.int64(7)}
    grid = dj.sweep(engine, corrupted=LINE, edit=dj.scale(1.0), **asked)
    assert (grid.values.shape, grid.seed) == ((3,), 7)
