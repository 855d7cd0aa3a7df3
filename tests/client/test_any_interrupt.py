"""Every call that has an engine compute passes is interrupted in its midst: it raises, or stands at a stop, and has
what was done. The requests are those whose handlers say that they run passes; one that no call makes fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.datasets.request import CheckCollect
from djinn_jupyter.methods.graphs.engine import graphing
from djinn_jupyter.methods.sweep.request import CheckSweep
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from tests import transcoders
from tests.client.tables import LINE, METRIC, OTHER
from tests.engine.desk import Desk

pytestmark = pytest.mark.drawn

PAIR: Final[dict[str, Any]] = {"clean": LINE, "corrupted": OTHER, "metric": METRIC}
PAIRS: Final[dict[str, Any]] = {"clean": [LINE, OTHER, LINE], "corrupted": [OTHER, LINE, OTHER], "metric": METRIC}
CELLS: Final[dict[str, Any]] = {"site": "resid_post", "over": "layer,position", "mode": "exact"}
LINES: Final = [LINE, OTHER, LINE[:4], OTHER[:4]]


def stopped(engine: RemoteEngine) -> Any:
    session = engine.session("mine", fresh=True)
    session.breakpoint("resid_post.1", when="step == 0")
    session.run(LINE, max_new_tokens=3)
    return session


def finished(engine: RemoteEngine) -> Any:
    session = engine.session("mine", fresh=True)
    session.run(LINE, max_new_tokens=1)
    return session


def found(engine: RemoteEngine, **lines: Any) -> dj.Edges:
    return dj.edges(engine, **(lines or PAIRS))


CALLS: Final[dict[str, Callable[[RemoteEngine, Path], Any]]] = {
    "sweep": lambda engine, folder: dj.sweep(engine, **PAIR, **CELLS),
    "sweep of pairs": lambda engine, folder: dj.sweep(engine, **PAIRS, **CELLS),
    "path": lambda engine, folder: dj.path(engine, "z -> logits", **PAIR, over="layer,head", mode="exact"),
    "attribute": lambda engine, folder: dj.attribute(engine, **PAIR, site="z", over="layer,head"),
    "attribute, confirmed": lambda engine, folder: dj.attribute(engine, **PAIR, site="z", over="layer,head", top=4),
    "edges by gradients": lambda engine, folder: found(engine, **PAIR),
    "edges of pairs": lambda engine, folder: found(engine),
    "exact edges": lambda engine, folder: dj.edges(engine, **PAIR, method="exact"),
    "edges, patched": lambda engine, folder: dj.edges(engine, **PAIR, top=9),
    "circuit": lambda engine, folder: dj.circuit(engine, found(engine), 9),
    "circuit of one pair": lambda engine, folder: dj.circuit(engine, found(engine, **PAIR), 9),
    "curve": lambda engine, folder: dj.circuit_curve(engine, found(engine)),
    "curve of one pair": lambda engine, folder: dj.circuit_curve(engine, found(engine, **PAIR)),
    "acdc": lambda engine, folder: dj.acdc(engine, found(engine), 0.01, first=12),
    "graph": lambda engine, folder: dj.attribution_graph(engine, LINE, METRIC),
    "heads": lambda engine, folder: engine.head_scores(LINES * 3),
    "feature": lambda engine, folder: engine.feature("tc.1[3]"),
    "patterns": lambda engine, folder: stopped(engine).patterns(),
    "head": lambda engine, folder: engine.head("1.2", LINES * 3),
    "why": lambda engine, folder: stopped(engine).why("1.2", key=1),
    "text": lambda engine, folder: finished(engine).text(),
    "lens of a text": lambda engine, folder: finished(engine).text_lens(),
    "loss": lambda engine, folder: engine.loss(LINES),
    "loss of a session": lambda engine, folder: finished(engine).loss(),
    "logits": lambda engine, folder: finished(engine).all_logits(),
    "collection": lambda engine, folder: engine.collect(LINES, "z.0", to=folder, shard_prompts=1),
    "splice": lambda engine, folder: dj.splice(engine, "tc.1", LINES),
    "direct": lambda engine, folder: dj.direct(engine, LINE, metric=METRIC),
    "weight": lambda engine, folder: engine.weight("W_U"),
    "run": lambda engine, folder: engine.session("mine", fresh=True).run(LINE, max_new_tokens=6),
    "rows": lambda engine, folder: engine.session("mine", fresh=True).run([LINE, OTHER], max_new_tokens=6),
    "resume": lambda engine, folder: stopped(engine).resume(),
    "step": lambda engine, folder: stopped(engine).step(5),
    "back": lambda engine, folder: stopped(engine).back(1, by="layer"),
}
QUESTION: Final = "it asks one of several engines whether it would begin, and computes nothing"
MADE_ELSEWHERE: Final[dict[type, str]] = {
    ask.ResumeWith: "it is of hooks, which TransformerLens and nnsight call",
    CheckSweep: QUESTION,
    CheckCollect: QUESTION,
}
WAY_BACK: Final = "all its scores come together, at the end of one way back"
ONE_PASS: Final = "it is one pass"
KEEPS_NOTHING: Final = {
    "attribute": WAY_BACK,
    "edges by gradients": WAY_BACK,
    "circuit of one pair": ONE_PASS,
    "feature": "its decoder and its pass are one page",
    "patterns": ONE_PASS,
    "why": ONE_PASS,
    "text": ONE_PASS,
    "lens of a text": ONE_PASS,
    "loss of a session": ONE_PASS,
    "logits": ONE_PASS,
    "direct": ONE_PASS,
    "weight": "it is one tensor, which is read",
}


def long_requests() -> frozenset[type]:
    return frozenset(kind for kind in kinds.known().requests if kind.terms.wakes_weights)


def waits_in_one_wrapper(public: object) -> bool:
    code = getattr(public, "__code__", None)
    return code is not None and code.co_name == "waiting_call"


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no part be larger by a faster machine."""
    monkeypatch.setattr("djinn_jupyter.engine.session.run.SECONDS_BETWEEN", -1.0)
    monkeypatch.setattr("djinn_jupyter.methods.attribution.engine.line.SLICE_SECONDS", -1.0)
    monkeypatch.setattr("djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 5)
    monkeypatch.setattr(graphing, "TOGETHER", 4)


@dataclass(frozen=True, slots=True)
class Moment:
    """So many waits of the client after the request of this kind with this number, from 0 on, was asked."""

    kind: type
    number: int
    waits: int


class Waits:
    """The waits of a client after each request that it asked."""

    def __init__(self, engine: RemoteEngine, patch: pytest.MonkeyPatch, interrupted: Moment | None = None) -> None:
        self.asked: list[type] = []
        self.counts: list[int] = []
        self.came = False
        channel: Any = engine.channel
        pump, original = channel._pump, channel.ask

        def wait() -> None:
            self.counts[-1] += 1
            if interrupted is not None and not self.came and self._is_at(interrupted):
                self.came = True
                raise KeyboardInterrupt
            pump()

        def ask_noted(request: ask.Request) -> Any:
            self.asked.append(type(request))
            self.counts.append(0)
            return original(request)

        patch.setattr(channel, "_pump", wait)
        patch.setattr(channel, "ask", ask_noted)

    def _is_at(self, moment: Moment) -> bool:
        number = self.asked.count(moment.kind) - 1
        return (self.asked[-1], number, self.counts[-1]) == (moment.kind, moment.number, moment.waits)

    def midst(self, long: frozenset[type]) -> Moment:
        """Return the moment in the midst of the last kind of long request: within the one of them in the middle."""
        kind = [one for one in self.asked if one in long][-1]
        each = [count for one, count in zip(self.asked, self.counts, strict=True) if one is kind]
        return Moment(kind, len(each) // 2, max(1, each[0] // 2) if len(each) == 1 else 1)


@pytest.fixture
def modules(engine: RemoteEngine, tmp_path: Path) -> Iterator[None]:
    layers = {layer: transcoders.drawn(32, seed=layer) for layer in range(engine.description.layers)}
    engine.add_transcoders("tc", transcoders.set_saved(tmp_path / "tc", layers), "mlp_in")
    yield
    engine.remove_module("tc")


def has_parts(kept: object) -> bool:
    values = kept.values if hasattr(kept, "values") and not isinstance(kept, dict) else None
    return bool(kept) if values is None else bool(np.isfinite(np.asarray(values)).any())


@pytest.mark.usefixtures("small_steps", "modules")
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_in_its_midst_keeps_what_was_done(
    engine: RemoteEngine, desk: Desk, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = long_requests()
    CALLS[name](engine, tmp_path / "first")  # which measures what gradients take, once for a model
    with monkeypatch.context() as patch:
        whole = Waits(engine, patch)
        CALLS[name](engine, tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut = Waits(engine, patch, whole.midst(long))
        try:
            left = CALLS[name](engine, tmp_path / "cut")
        except dj.WorkInterrupted as broken:
            left = broken.kept
        except dj.Interrupted as broken:
            left = [broken.stop]
        except dj.BatchInterrupted as broken:
            left = [row for row in broken.rows if row is not None]
        except KeyboardInterrupt:
            assert name == "weight"
            left = None
        else:
            pytest.fail(f"It returned {left}.")
    assert cut.came
    if name == "collection":
        left = list((tmp_path / "cut").glob("*.safetensors"))
        assert len(left) < len(LINES)
    assert has_parts(left) == (name not in KEEPS_NOTHING), left
    desk.settle()
    assert all(one.name.startswith("mine") for one in engine.sessions())


@pytest.mark.usefixtures("small_steps", "modules")
def test_every_request_that_runs_passes_is_made_by_a_call(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: set[type] = set()
    for number, call in enumerate(CALLS.values()):
        with monkeypatch.context() as patch:
            waits = Waits(engine, patch)
            call(engine, tmp_path / str(number))
        made |= set(waits.asked)
    assert long_requests() - made == MADE_ELSEWHERE.keys()
    called = {name for call in (*CALLS.values(), found) for name in call.__code__.co_names}
    assert called >= {name for name in dir(dj) if waits_in_one_wrapper(getattr(dj, name))}
    assert KEEPS_NOTHING.keys() <= CALLS.keys()
