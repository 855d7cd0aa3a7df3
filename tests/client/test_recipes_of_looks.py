"""Looks and recordings at any stop are made again from their recipe, bit for bit, or say why no recipe makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.looks import Snapshot
from djinn_jupyter.errors import UsageError
from tests.client import tables
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

LINE: Final = [9, 8, 7, 21, 9]


def at_step(session: Any, step: int) -> None:
    session.breakpoint("resid_post.1", when=f"step == {step}")
    session.run(LINE, max_new_tokens=6)


def edited(session: Any) -> None:
    at_step(session, 2)
    session.edit(dj.add(np.linspace(-1, 1, 32), coef=2.0))
    session.edit(dj.scale(0.5), positions=-1)
    session.enable_edit(1, False)


def extended(session: Any) -> None:
    session.run(LINE, max_new_tokens=3, free=True)
    session.breakpoint("mlp_out.2")
    session.run([3, 4, 5], max_new_tokens=2, extend=True)


def behind_rules(session: Any) -> None:
    session.steer("resid_post.0", dj.scale(0.5), positions="2:")
    session.run(LINE, max_new_tokens=2, free=True)
    session.unsteer()
    session.breakpoint("resid_post.1")
    session.run([3, 4], max_new_tokens=2, extend=True)


def gone_back(session: Any) -> None:
    session.run(LINE, max_new_tokens=6, free=True)
    session.back(2, by="token")
    session.step(2)


STOPS: Final[dict[str, Callable[[Any], None]]] = {
    "a generated token": lambda session: at_step(session, 3),
    "edits behind other passes": edited,
    "an extended line": extended,
    "passes under rules": behind_rules,
    "a step back": gone_back,
}
ATTRIBUTED: Final = {*STOPS} - {"edits behind other passes"}  # the parts of an edited value have no recipe


@pytest.mark.parametrize("stop", STOPS)
def test_a_look_behind_other_passes_is_made_again(engine: RemoteEngine, tmp_path: Path, stop: str) -> None:
    session = engine.session("mine", fresh=True)
    STOPS[stop](session)
    looked: list[Any] = [session.inspect(), session.inspect("z.2", ahead=True), session.lens(3), session.effect()]
    if stop in ATTRIBUTED:
        looked.append(session.attribute(17, heads=True))
        looked.append(session.attribute(17, 42, heads=True, neurons=True, ahead=True))
    fork = session.fork("other")
    forked = fork.inspect()
    fork.close()
    session.close()
    for n, one in enumerate((*looked, forked)):
        assert one.recipe["passes"], one
        (tmp_path / str(n)).mkdir()
        tables.made_again(engine, one, tmp_path / str(n))
    assert np.array_equal(forked.value, looked[0].value)


def ruled(session: Any) -> None:
    session.breakpoint("resid_post.1")
    session.steer("resid_post.0", dj.scale(0.5))
    session.run(LINE, max_new_tokens=2)


def edited_before(session: Any) -> None:
    session.breakpoint("resid_post.0")
    session.run(LINE, max_new_tokens=2)
    session.edit(dj.scale(0.5))
    session.step()


def edited_in_the_pass_before(session: Any) -> None:
    edited_before(session)
    session.resume()


def limited(session: Any) -> None:
    session.steer("resid_post.0", dj.scale(0.5), on="new")
    session.run(LINE, max_new_tokens=3, free=True)
    session.unsteer()
    session.breakpoint("resid_post.1")
    session.run([3, 4], max_new_tokens=2, extend=True)


UNMADE: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    "rules": (ruled, "the pass was edited at an earlier stop, or stopped under steering rules"),
    "an earlier stop": (edited_before, "the pass was edited at an earlier stop, or stopped under steering rules"),
    "an earlier pass": (edited_in_the_pass_before, "an earlier pass of its line was edited at a stop"),
    "limits": (limited, "a steering rule with a condition, or of some passes alone, held while tokens were generated"),
}


@pytest.mark.parametrize("case", UNMADE)
def test_a_look_that_no_recipe_makes_again_says_why(engine: RemoteEngine, tmp_path: Path, case: str) -> None:
    session = engine.session("mine", fresh=True)
    make, why = UNMADE[case]
    make(session)
    for look in (session.inspect(), session.lens(), session.effect()):
        said = rf"^No recipe makes this {type(look).__name__} again: {why}.*\. Its numbers stay as they are .*\.$"
        for ask in (lambda look=look: look.recipe, lambda look=look: look.save(tmp_path / f"a{look.ending}")):
            with pytest.raises(UsageError, match=said):
                ask()
        with pytest.raises(UsageError, match=said):
            dj.reproduce(engine, look)
        assert look.columns()


def test_rules_in_force_and_rows_shared_with_other_sessions_are_said(engine: RemoteEngine) -> None:
    session = engine.session("mine", fresh=True)
    at_step(session, 0)
    session.steer("mlp_out.2", dj.scale(0.5))
    with pytest.raises(UsageError, match="No recipe makes this Snapshot again: steering rules are in force"):
        _ = session.inspect("mlp_out.2", ahead=True).recipe
    engine.session("mine", fresh=True).run([LINE, LINE], max_new_tokens=4, mode="fast", ignore_eos=True)
    row = engine.session("mine/1")
    row.breakpoint("resid_post.1")
    row.run([3, 4], max_new_tokens=2, extend=True)
    with pytest.raises(UsageError, match="again: passes of its line were shared with other sessions"):
        _ = row.inspect().recipe


def test_a_snapshot_of_bfloat16_is_kept_bit_for_bit(tmp_path: Path) -> None:
    with reached(build_desk(build("llama", layers=2).to(torch.bfloat16), tokenizer())) as [engine]:
        session = engine.session("mine", fresh=True)
        at_step(session, 1)
        snapshot = session.inspect("z.1")
        read = Snapshot.read(snapshot.save(tmp_path / "a.snapshot.djinn"))
        assert (read.dtype, read.value.tobytes()) == ("bfloat16", snapshot.value.tobytes())
        assert dj.reproduce(engine, read).same
        assert read.columns()["position"] == list(snapshot.positions)


def test_a_file_whose_value_is_of_other_positions_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    session = engine.session("mine", fresh=True)
    at_step(session, 0)
    snapshot = session.inspect()
    snapshot.reply = _with_positions(snapshot.reply, (0, 1))
    file = snapshot.save(tmp_path / "a.snapshot.djinn")
    with pytest.raises(UsageError, match=r"a\.snapshot\.djinn is no file of a snapshot .*not that of its positions"):
        Snapshot.read(file)


def _with_positions(reply: Any, positions: tuple[int, ...]) -> Any:
    replace = msgspec.structs.replace
    return replace(reply, snapshot=replace(reply.snapshot, positions=positions))


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


def test_a_recording_is_made_again_from_its_passes_and_what_differs_is_found_in_one(engine: RemoteEngine) -> None:
    session = engine.session("mine", fresh=True)
    session.watch(SITE, byte_cap=32 * 4 * 6)
    session.run(LINE, max_new_tokens=4, free=True)
    watched = session.watched(SITE)
    assert (len(watched), watched.passes_left_out) == (2, 2)
    assert dj.reproduce(engine, watched).same
    session = engine.session("mine", fresh=True)
    session.run(LINE, max_new_tokens=3, free=True)
    fork = session.fork("other")
    fork.watch(SITE)
    fork.run([4, 5], max_new_tokens=3, extend=True, free=True)
    watched = fork.watched(SITE)
    assert watched.positions[0][0] > 0
    assert dj.reproduce(engine, watched).same
    session = engine.session("mine", fresh=True)
    session.watch(SITE)
    session.run(LINE, max_new_tokens=3, free=True)
    watched = session.watched(SITE)
    watched.values = tuple(value.copy() for value in watched.values)
    watched.values[1][0, 7] += 3
    found = dj.reproduce(engine, watched)
    assert (found.different, found.place) == (1, {"pass": 1, "run": 1, "position": 5, "value": 7})


def edited_run(session: Any) -> None:
    session.breakpoint("resid_post.0", when="step == 1")
    session.run(LINE, max_new_tokens=4)
    session.edit(dj.scale(0.5))
    session.resume(free=True)


def gone_back_run(session: Any) -> None:
    session.run(LINE, max_new_tokens=4, free=True)
    session.back(2, by="token")
    session.resume(free=True)


def limited_run(session: Any) -> None:
    session.steer("resid_post.0", dj.scale(0.5), when="step > 0")
    session.run(LINE, max_new_tokens=3, free=True)


def left_edited(session: Any) -> None:
    edited_run(session)
    session.run([1, 2, 3], max_new_tokens=2, free=True)


UNRECORDED: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    "edited": (edited_run, "in run 1, an earlier pass of its line was edited at a stop"),
    "edited, and another run": (left_edited, "in run 1, an earlier pass of its line was edited at a stop"),
    "gone back": (gone_back_run, "in run 1, the session went back, and other passes followed"),
    "limits": (limited_run, "in run 1, a steering rule with a condition"),
    "nothing": (lambda session: None, "it recorded no pass"),
}


@pytest.mark.parametrize("case", UNRECORDED)
def test_a_recording_that_no_recipe_makes_again_says_why(engine: RemoteEngine, tmp_path: Path, case: str) -> None:
    session = engine.session("mine", fresh=True)
    session.watch(SITE)
    make, why = UNRECORDED[case]
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
