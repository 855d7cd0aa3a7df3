"""An interrupt in the midst of one piece of work: the engine replies with the parts that are done, which are those of a
smaller request, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import interrupts
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link import waiting
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.methods.graphs.api import AttributionGraph
from djinn_jupyter.methods.graphs.engine import graphing
from djinn_jupyter.wire import requests as ask
from tests.client.test_graphs import LINE, graph, planted  # noqa: F401  fixtures
from tests.engine.desk import Desk

PAIR: Final[dict[str, Any]] = {
    "clean": (9, 8, 7, 21),
    "corrupted": (9, 8, 7, 31),
    "metric": "logit(17) - logit(42)",
}
LINES: Final = [(5, 6, 5, 6, seed) for seed in range(7, 13)]


@pytest.fixture(autouse=True)
def _told_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djinn_jupyter.engine.session.run.SECONDS_BETWEEN", -1.0)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Have work interrupted when it tells its progress for the so-and-so-many-th time, and return what is kept."""

    def cut(work: Callable[[], Any], *at: int) -> Any:
        told: list[str] = []

        def tell(said: str) -> None:
            told.append(said)
            if len(told) in at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(interrupts, "far_within", tell)
            with pytest.raises(dj.WorkInterrupted) as broken:
                work()
        assert ("`kept`" in str(broken.value)) == (broken.value.kept is not None), broken.value
        return broken.value.kept

    return cut


def test_exact_edges_of_one_pair_keep_those_that_were_patched(
    engine: RemoteEngine, cut: Callable[..., Any], tmp_path: Path
) -> None:
    def exact() -> dj.Edges:
        return dj.edges(engine, **PAIR, method="exact")

    whole = exact()
    for at in (1, 2, 40):
        left = cut(exact, at)
        if left is None:
            assert at == 1
            continue
        assert at - 1 <= len(left) <= at + 1 < len(whole)
        assert np.array_equal(left.values, np.where(np.isnan(left.values), np.nan, whole.values), equal_nan=True)
        assert dj.reproduce(engine, dj.Edges.read(left.save(tmp_path / f"{at}.edges.djinn"))).same
    assert whole.made[0] == exact().made[0]
    assert engine.sessions() == ()


def test_edges_patched_besides_keep_those_that_were_patched(engine: RemoteEngine, cut: Callable[..., Any]) -> None:
    whole = dj.edges(engine, **PAIR, top=12)
    of_gradients: list[str] = []
    step = waiting.Wait.step

    def stepped(wait: waiting.Wait, said: str) -> None:
        of_gradients.append(said)
        step(wait, said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting.Wait, "step", stepped)
        dj.edges(engine, **PAIR)
    left = cut(lambda: dj.edges(engine, **PAIR, top=12), len(of_gradients) + 5)
    assert np.array_equal(left.values, whole.values, equal_nan=True)
    assert 0 < np.count_nonzero(~np.isnan(left.exact)) < 12
    assert np.array_equal(left.exact, np.where(np.isnan(left.exact), np.nan, whole.exact), equal_nan=True)


@pytest.mark.parametrize("done", [3])
def test_head_scores_keep_the_lines_that_were_read(engine: RemoteEngine, cut: Callable[..., Any], done: int) -> None:
    left = cut(lambda: engine.head_scores(LINES), done + 1)
    assert done <= len(left.tokens) < len(LINES)
    assert np.array_equal(left.values, engine.head_scores(LINES[: len(left.tokens)]).values, equal_nan=True)
    assert f"of which the first {len(left.tokens)} were read" in repr(left)
    assert dj.reproduce(engine, left).same


def test_a_graph_keeps_the_features_whose_effects_are_known(
    planted: RemoteEngine,  # noqa: F811
    graph: AttributionGraph,  # noqa: F811
    cut: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphing, "TOGETHER", 2)
    sizes = set()
    for at in range(1, 40, 3):
        try:
            left = cut(lambda: dj.attribution_graph(planted, LINE, "logit(2) - logit(7)"), at)
        except pytest.fail.Exception:
            break
        if left is None:
            continue
        features = len(left.reply.sites)
        sizes.add(features)
        smaller = dj.attribution_graph(planted, LINE, "logit(2) - logit(7)", features=features)
        assert np.array_equal(left.values, smaller.values)
        assert left.nodes == smaller.nodes
        assert dj.reproduce(planted, left).same
    assert len(sizes) > 1
    assert planted.sessions() == ()


def test_the_line_of_the_wait_says_how_much_of_the_whole_is_done(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting.Wait, "step", lambda wait, far: said.append(far))
    found = dj.edges(engine, **PAIR, method="exact")
    assert said[-1] == f"patching edges, {len(found) - 1} of {len(found)} passes"
    engine.head_scores(LINES)
    assert said[-1] == f"reading heads, {len(LINES) - 1} of {len(LINES)} lines"
    both = {name: [value] * 2 for name, value in PAIR.items() if name != "metric"}
    dj.edges(engine, **both, metric=PAIR["metric"])
    assert said[-1].startswith("1 of 2 pairs, attributing, ")


def test_a_second_interrupt_waits_no_longer(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    asked = engine.channel.ask

    def ask_but_pause(request: Any) -> Any:
        return interrupted() if isinstance(request, ask.Pause) else asked(request)

    monkeypatch.setattr(interrupts, "far_within", interrupted)
    monkeypatch.setattr(engine.channel, "ask", ask_but_pause)
    with pytest.raises(dj.WorkInterrupted) as broken:
        engine.head_scores(LINES)
    assert broken.value.kept is None
    assert engine.sessions() == ()


def test_work_that_is_paused_from_elsewhere_never_looks_whole(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def pause_at_the_third(said: str) -> None:
        told.append(said)
        if len(told) == 3:
            [session] = engine.sessions()
            desk.post(ask.Pause(session=session.name), [])

    monkeypatch.setattr(interrupts, "far_within", pause_at_the_third)
    with pytest.raises(dj.WorkInterrupted) as broken:
        engine.head_scores(LINES)
    assert 2 <= len(broken.value.kept.tokens) < len(LINES)


def test_a_pause_ends_nothing_that_has_no_parts(engine: RemoteEngine, desk: Desk) -> None:
    desk.open("a")
    found: list[Any] = []
    desk.post(Score(session="a", prompts=((1, 2, 3), (4, 5, 6))), found)
    assert not desk.ask(ask.Pause(session="a")).was_running
    desk.settle()
    assert found[0].tokens == ((1, 2, 3), (4, 5, 6))
    desk.close("a")
