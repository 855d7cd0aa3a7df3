"""Rules and patches through the client: limits as a user writes them, values that cross from one engine to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.patches import spell_standing
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom, Set
from djinn_jupyter.wire.replies import Welcome
from tests.client.direct import DirectChannel
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.families import build

PROMPT = tokens(12)
OTHER = tokens(12, seed=5)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, (None, None)),
        (":", (None, None)),
        ("5:", (None, 5)),
        (slice(5, None), (None, 5)),
        ("0,2:4,9:", ((0, 2, 3), 9)),
        ("-3:", ((-3, -2, -1), None)),
        (":3", ((0, 1, 2), None)),
        ("last", ((-1,), None)),
        ([0, 4], ((0, 4), None)),
        (-1, ((-1,), None)),
    ],
)
def test_positions_of_a_rule_need_no_stop(written: Any, meant: Any) -> None:
    assert spell_standing(written) == meant


@pytest.mark.parametrize("written", ["2:-1", "5::2", ":-1"])
def test_positions_that_depend_on_a_length_are_refused(written: str) -> None:
    with pytest.raises(InvalidEdit, match="write its positions as 2:5, 5:, -3: or -1"):
        spell_standing(written)


def test_a_refusal_says_the_positions_as_they_were_written() -> None:
    with pytest.raises(InvalidEdit, match="Positions '5:2' select nothing"):
        spell_standing("5:2")


@pytest.fixture(scope="module")
def engines() -> tuple[Desk, Desk]:
    return build_desk(build("llama")), build_desk(build("llama"))


@pytest.fixture
def opened(engines: tuple[Desk, Desk]) -> Iterator[tuple[RemoteSession, RemoteSession, RemoteSession]]:
    """Two sessions of one engine, and one of another."""
    here, there = (
        DirectChannel(
            Welcome(version="0", model=desk.engine.description, attached=()),
            lambda request, answer, desk=desk: desk.engine.submit(request, ME, answer),  # type: ignore[misc]
            desk.engine.tick,
        )
        for desk in engines
    )
    for name, desk in (("a", engines[0]), ("b", engines[0]), ("c", engines[1])):
        desk.open(name)
    yield RemoteSession(here, "a"), RemoteSession(here, "b"), RemoteSession(there, "c")
    for desk in engines:
        desk.close_all()


def stopped(session: RemoteSession, prompt: tuple[int, ...], site: str) -> None:
    session.breakpoint(site)
    session.run(prompt, max_new_tokens=3, ignore_eos=True)


def sent(session: RemoteSession, kind: type) -> Any:
    return next(one for one in reversed(session.channel.requests) if isinstance(one, kind))  # type: ignore[attr-defined]


def test_a_rule_with_limits_is_set_while_idle_and_says_them(opened: tuple[RemoteSession, ...]) -> None:
    rule = opened[0].steer("resid_post.*", dj.scale(0.9), "5:", when="step > 0", on="new")
    assert (rule.site, rule.onward, rule.on_passes, rule.when) == ("resid_post.*", 5, "new", "step > 0")
    assert rule.what == "scale 0.9 at resid_post.*, from position 5 on, at new tokens, when step > 0"
    rule.off()
    assert not opened[0].rules()[0].enabled


def test_a_rule_takes_the_value_that_a_patch_names_from_either_engine(opened: tuple[RemoteSession, ...]) -> None:
    target, near, away = opened
    stopped(near, OTHER, "resid_post.6")
    stopped(away, OTHER, "resid_post.6")
    value = away.inspect("z.4[1]").value
    ends = []
    for source in (near, near.name, away):
        rule = target.steer("z.4[1]", dj.patch_from(source))
        assert rule.positions == tuple(range(12))
        assert (
            rule.what == f"patch from {source if isinstance(source, str) else source.label} at z.4[1], positions 0-11"
        )
        target.clear()
        target.breakpoint("z.4")
        target.run(PROMPT, max_new_tokens=3, ignore_eos=True)
        assert np.array_equal(target.inspect("z.4[1]").value, value)
        target.clear()
        ends.append(target.resume().tokens)
        target.unsteer()
    assert ends[0] == ends[1] == ends[2]


def test_an_edit_patches_within_an_engine_by_name_and_across_engines_by_value(
    opened: tuple[RemoteSession, ...],
) -> None:
    target, near, away = opened
    for session in (near, away):
        stopped(session, OTHER, "resid_post.4")
    stopped(target, PROMPT, "resid_post.4")
    target.edit(dj.patch_from(near), "2:4")
    assert isinstance(sent(target, ask.ApplyEdit).edit, PatchFrom)
    within = target.inspect().value
    target.revert()
    told = target.edit(dj.patch_from(away), "2:4")
    assert isinstance(sent(target, ask.ApplyEdit).edit, Set)
    assert told.edit == "patch from c"
    assert np.array_equal(target.inspect().value, within)
    assert target.stop.influences.edits[0].what == "patch from c at resid_post.4, positions 2-3"


def test_patches_that_do_not_fit_are_refused_before_anything_is_set(opened: tuple[RemoteSession, ...]) -> None:
    target, near, away = opened
    stopped(away, OTHER, "resid_post.4")
    stopped(target, PROMPT, "resid_post.4")
    with pytest.raises(InvalidEdit, match="the source has 1 positions, the edited part 2; name as many there as here"):
        target.edit(dj.patch_from(away, positions=3), "2:4")
    with pytest.raises(InvalidEdit, match="needs both ends of its positions"):
        target.steer("resid_post.4", dj.patch_from(away), "5:")
    with pytest.raises(InvalidEdit, match="takes the value of one site"):
        target.steer("resid_post.*", dj.patch_from(away))
    with pytest.raises(dj.errors.IllegalMove, match="'b' is idle: no forward pass is stopped"):
        target.steer("resid_post.4", dj.patch_from(near))
    assert target.rules() == ()
