"""What a watch recorded is made again from its recipe, bit for bit, or says why no recipe makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests.client import tables

LINE: Final = [9, 8, 7, 21, 9]
SITE: Final = "resid_post.1"


def of_runs(session: Any) -> None:
    session.run(LINE, max_new_tokens=4, free=True)
    session.run([3, 4], max_new_tokens=2, extend=True, free=True)
    session.run([1, 2, 3], max_new_tokens=3, free=True)


def of_stops(session: Any) -> None:
    """A run that was left at a stop, and another that stands at one, both behind the watch."""
    session.breakpoint("resid_post.2", when="step == 1")
    session.run(LINE, max_new_tokens=4)
    session.run([1, 2, 3], max_new_tokens=3)


def steered(session: Any) -> None:
    session.steer("resid_pre.1", dj.add(np.linspace(-1, 1, 32), coef=2.0), positions="2:")
    session.run(LINE, max_new_tokens=3, free=True)
    session.steer("mlp_out.0", dj.scale(0.5))
    session.run([5, 6], max_new_tokens=2, extend=True, free=True)


RUNS: Final = {"runs": of_runs, "stops": of_stops, "rules": steered}


@pytest.mark.parametrize("direction", [None, np.linspace(-1, 2, 32)], ids=["values", "direction"])
@pytest.mark.parametrize("case", RUNS)
def test_what_a_watch_recorded_is_recorded_again(
    engine: RemoteEngine, tmp_path: Path, case: str, direction: Any
) -> None:
    session = engine.session("mine", fresh=True)
    named = {} if direction is None else {"direction": direction, "name": "line"}
    session.watch(SITE, **named)
    RUNS[case](session)
    watched = session.watched(SITE, named.get("name"))
    session.close()
    tables.made_again(engine, watched, tmp_path)


def test_passes_beyond_the_byte_cap_are_no_part_of_it(engine: RemoteEngine) -> None:
    session = engine.session("mine", fresh=True)
    session.watch(SITE, byte_cap=32 * 4 * 6)
    session.run(LINE, max_new_tokens=4, free=True)
    watched = session.watched(SITE)
    assert (len(watched), watched.passes_left_out) == (2, 2)
    assert dj.reproduce(engine, watched).same


def test_a_watch_that_a_fork_began_midway_is_made_again_from_the_whole_line(engine: RemoteEngine) -> None:
    session = engine.session("mine", fresh=True)
    session.run(LINE, max_new_tokens=3, free=True)
    fork = session.fork("other")
    fork.watch(SITE)
    fork.run([4, 5], max_new_tokens=3, extend=True, free=True)
    watched = fork.watched(SITE)
    assert watched.positions[0][0] > 0
    assert dj.reproduce(engine, watched).same


def test_the_number_that_differs_is_found_in_its_pass(engine: RemoteEngine) -> None:
    session = engine.session("mine", fresh=True)
    session.watch(SITE)
    session.run(LINE, max_new_tokens=3, free=True)
    watched = session.watched(SITE)
    watched.values = tuple(value.copy() for value in watched.values)
    watched.values[1][0, 7] += 3
    found = dj.reproduce(engine, watched)
    assert (found.different, found.place) == (1, {"pass": 1, "run": 1, "position": 5, "value": 7})


def edited(session: Any) -> None:
    session.breakpoint("resid_post.0", when="step == 1")
    session.run(LINE, max_new_tokens=4)
    session.edit(dj.scale(0.5))
    session.resume(free=True)


def gone_back(session: Any) -> None:
    session.run(LINE, max_new_tokens=4, free=True)
    session.back(2, by="token")
    session.resume(free=True)


def limited(session: Any) -> None:
    session.steer("resid_post.0", dj.scale(0.5), when="step > 0")
    session.run(LINE, max_new_tokens=3, free=True)


def left_edited(session: Any) -> None:
    edited(session)
    session.run([1, 2, 3], max_new_tokens=2, free=True)


UNMADE: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    "edited": (edited, "in run 1, an earlier pass of its line was edited at a stop"),
    "edited, and another run": (left_edited, "in run 1, an earlier pass of its line was edited at a stop"),
    "gone back": (gone_back, "in run 1, the session went back, and other passes followed"),
    "limits": (limited, "in run 1, a steering rule with a condition"),
    "nothing": (lambda session: None, "it recorded no pass"),
}


@pytest.mark.parametrize("case", UNMADE)
def test_a_recording_that_no_recipe_makes_again_says_why(engine: RemoteEngine, tmp_path: Path, case: str) -> None:
    session = engine.session("mine", fresh=True)
    session.watch(SITE)
    make, why = UNMADE[case]
    make(session)
    watched = session.watched(SITE)
    said = rf"^No recipe makes this Watched again: {why}.*\. Its numbers stay as they are .*\.$"
    with pytest.raises(UsageError, match=said):
        watched.save(tmp_path / "a.watched.djinn")
    with pytest.raises(UsageError, match=said):
        dj.reproduce(engine, watched)
    assert len(watched.columns()["pass"]) == sum(map(len, watched.positions))


def test_a_unit_vector_stays_as_it_is() -> None:
    """So that a direction is the same again in another engine."""
    from djinn_jupyter.api.arrays import from_numpy
    from djinn_jupyter.engine.passes.breakpoints import unit_of
    from djinn_jupyter.wire.sites import parse_site

    drawn = np.random.default_rng(0)
    for width in (1, 2, 3, 32):
        tap: Any = type("Tap", (), {"heads": None, "width": width})()
        for _ in range(50):
            once = unit_of(from_numpy(drawn.normal(size=width)), parse_site(SITE), tap)
            assert torch.equal(once, unit_of(from_numpy(once.numpy()), parse_site(SITE), tap))
