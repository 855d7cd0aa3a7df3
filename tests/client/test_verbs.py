"""The verbs of a session, its rules, and verbs that methods add."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter import verbs
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.patches import spell_standing
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Interrupted, Paused
from djinn_jupyter.errors import IllegalMove, InvalidEdit, UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom, Set
from djinn_jupyter.wire.replies import TokenSampled, Welcome
from tests.client.direct import DirectChannel
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.families import build


def test_a_run_reaches_its_end_or_stops_inside(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    done = session.run([5, 6], max_new_tokens=3, ignore_eos=True)
    assert (len(done.tokens), done.reason, done.logits.dtype) == (3, "length", np.float32)
    assert repr(done).startswith("Finished (length): 3 new tokens ")
    session.breakpoint("resid_post.1")
    stop = session.run([5, 6])
    assert (stop.site, stop.layer, stop.step) == ("resid_post.1", 2, 0)
    said = "Paused at resid_post.1 (breakpoint): session paris, step 0, positions 0..1, 2 of 3 layers run"
    assert repr(stop).startswith(said)
    assert repr(session.stop) == repr(stop)


def test_the_value_of_a_stop_is_fetched_once_and_again_after_an_edit(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    stopped(session, (5, 6), "resid_post.1")
    stop = session.stop
    assert stop.hidden is stop.hidden
    assert len([one for one in engine.channel.requests if isinstance(one, ask.Inspect)]) == 1
    session.edit(dj.scale(0.0))
    assert not stop.hidden.any()


def test_a_streamed_run_that_is_refused_or_closed_raises_its_error(engine: RemoteEngine) -> None:
    for prompt in [[], [10**6]]:
        with pytest.raises(UsageError):
            engine.session("a").run(prompt, on_token=print)
    session = engine.session("a")

    def close(event: TokenSampled) -> None:
        engine.reach("a").close(force=True)

    with pytest.raises(IllegalMove, match="was closed"):
        session.run([9, 8, 7], max_new_tokens=50, ignore_eos=True, on_token=close)


def test_an_interrupt_pauses_the_run_and_says_where_it_stands(engine: RemoteEngine) -> None:
    session = engine.session("paris")

    def break_in(event: TokenSampled) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="is intact") as caught:
        session.run([5], max_new_tokens=50, ignore_eos=True, on_token=break_in)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert isinstance(caught.value.stop, Paused)
    assert caught.value.stop.session is session
    assert caught.value.stop.reason == session.stop.reason == "interrupt"


def test_failures_are_raised_as_what_they_are(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    session.close()
    with pytest.raises(UnknownSession):
        session.describe()
    session = engine.session("rome")
    with pytest.raises(IllegalMove):
        session.resume()
    with pytest.raises(UsageError, match="site: expected str of length >= 1"):
        session.breakpoint("")
    with pytest.raises(UsageError, match="max_new_tokens"):
        session.run([1], max_new_tokens=-1)


def test_a_session_has_the_name_of_its_notebook_or_needs_one(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "work/first look.ipynb")
    session = engine.session()
    assert (session.name, session.label) == ("work/first look.ipynb", "first look")
    assert repr(session) == f"Session first look of {engine.description.name}"
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    with pytest.raises(UsageError, match="name"):
        engine.session()


def test_positions_and_edits_cross_as_they_are_meant(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    stopped(session, (1, 2, 3, 4, 5), "resid_post.1")
    for positions in (slice(1, None), "1:", [1, 2, 3, 4], slice(-4, None), np.arange(1, 5)):
        session.edit(dj.zero(), positions=positions)
        assert sent(session, ask.ApplyEdit).positions == (1, 2, 3, 4)
    session.edit(2.5, positions=-1)
    assert sent(session, ask.ApplyEdit).positions == (-1,)
    session.edit(np.zeros(32, np.float32))
    assert isinstance(sent(session, ask.ApplyEdit).edit, Set)


STUB = Path(verbs.__file__).with_suffix(".pyi")
HOLDERS = {verbs.EngineVerbs: dj.RemoteEngine, verbs.SessionVerbs: dj.RemoteSession}


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def names_of(tree: ast.Module) -> dict[str, list[str]]:
    """Return the names that each class of holders has, in their order."""
    classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
    wanted = {kind.__name__: classes[kind.__name__] for kind in HOLDERS}
    return {
        name: [ast.unparse(one.targets[0]) for one in kind.body if isinstance(one, ast.Assign)]
        for name, kind in wanted.items()
    }


def test_a_verb_is_a_function_whose_first_parameter_is_the_object() -> None:
    for holder, name in [(h, n) for h in HOLDERS for n in vars(h) if not n.startswith("_")]:
        function = getattr(HOLDERS[holder], name)
        assert inspect.isfunction(function)
        assert (function.__name__, function) == (name, getattr(HOLDERS[holder], name))
        first = next(iter(inspect.signature(function).parameters.values()))
        assert (first.kind, first.annotation) == (first.POSITIONAL_ONLY, HOLDERS[holder].__name__)
    there = {holder.__name__: [name for name in vars(holder) if not name.startswith("_")] for holder in HOLDERS}
    assert there == names_of(ast.parse(STUB.read_text()))
    assert all(there.values())


def test_a_handle_imports_no_method() -> None:
    """Until one of its verbs is used. Requests are of the wire."""
    seen = "[m for m in sys.modules if 'jupyter.methods.' in m and '.request' not in m and m.count('.') > 2]"
    handles = "import sys, djinn_jupyter.api.engine, djinn_jupyter.api.session"
    engine = "djinn_jupyter.api.engine.RemoteEngine"
    assert in_a_new_process(f"{handles}\nprint({{'collect', 'loss'}} <= set(dir({engine})), {seen})") == "True []"
    used = f"{engine}.head_scores"
    assert "djinn_jupyter.methods.heads.api" in in_a_new_process(f"{handles}\n{used}\nprint({seen})")


def test_a_verb_is_bound_and_refuses_as_a_method_does(engine: RemoteEngine) -> None:
    assert list(inspect.signature(engine.loss).parameters) == ["prompts", "mode", "seed", "adapter"]
    with pytest.raises(
        dj.DjinnError, match=r"^loss takes no argument 'sed'; its arguments are prompts, mode, seed, ad"
    ):
        engine.loss([[5, 6]], sed=1)
    assert not hasattr(engine, "head_score")
    assert not hasattr(engine.session("a"), "_repr_html_")
    with pytest.raises(AttributeError, match=r"^'RemoteEngine' object has no attribute 'head_score'"):
        engine.head_score  # noqa: B018


def test_a_subclass_reaches_the_verb_of_its_base_and_a_double_has_it(engine: RemoteEngine) -> None:
    code = """
import djinn_jupyter as dj
class Own(dj.RemoteEngine):
    def loss(self, prompts): return super().loss
print(Own(None).loss([]).__self__.__class__.__name__)
"""
    assert in_a_new_process(code) == "Own"
    double = create_autospec(dj.RemoteEngine)
    double.loss([[5, 6]], seed=1)
    with pytest.raises(TypeError):
        double.loss([[5, 6]], sed=1)


PROMPT = tokens(12)
OTHER = tokens(12, seed=5)


def test_positions_of_a_rule_need_no_stop() -> None:
    for written, meant in [
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
    ]:
        assert spell_standing(written) == meant
    for written in ["2:-1", "5::2", ":-1"]:
        with pytest.raises(InvalidEdit, match="write its positions as 2:5, 5:, -3: or -1"):
            spell_standing(written)
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
            lambda request, answer, desk=desk: desk.engine.submit(request, ME, answer),
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
    return next(one for one in reversed(session.channel.requests) if isinstance(one, kind))


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
