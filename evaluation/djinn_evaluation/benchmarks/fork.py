"""A fork at 1,000 committed positions: its time, and the pages copied by the fork and by the first token after it."""

from __future__ import annotations

from time import perf_counter

from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession

COMMITTED = 1000
ROUNDS = 25


def run(setting: Setting) -> Result:
    shape, checks, rounds = setting.shape(), Checks(), setting.rounds(ROUNDS)
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine:
        parent = engine.session("parent", fresh=True)
        parent.run(random_tokens(COMMITTED, shape.vocabulary), max_new_tokens=1, ignore_eos=True)
        checks.same("committed positions", parent.describe().committed, COMMITTED)
        at_fork, at_token = _copied(engine, parent, checks)
        times = take_turns({"fork": lambda: _timed(parent), "round trip": engine.ping}, rounds=rounds)
        page_positions = engine.description.cache_groups[0].page_positions
    figures = (
        Figure(
            name="fork, asked and answered",
            unit="ms",
            value=Spread.of(1000 * s for s in times["fork"]),
            bar=at_most(1.0),
            sides={"round trip": Spread.of(1000 * s for s in times["round trip"])},
            sides_unit="ms",
        ),
        Figure(name="pages copied by the fork", unit="pages", value=Spread.of([at_fork]), bar=at_most(1)),
        Figure(name="pages copied by its next token", unit="pages", value=Spread.of([at_token]), bar=at_most(1)),
    )
    settings = {"shape": shape, "committed": COMMITTED, "page_positions": page_positions, "rounds": rounds}
    return Result(benchmark="fork", settings=settings, figures=figures, checks=checks.counts)


def _timed(parent: RemoteSession) -> float:
    begun = perf_counter()
    child = parent.fork("child")
    seconds = perf_counter() - begun
    child.close()
    return seconds


def _copied(engine: RemoteEngine, parent: RemoteSession, checks: Checks) -> tuple[int, int]:
    """Return the pages added by the fork and by the child's next token, which lies in the tail page."""
    before = _in_use(engine, parent)
    child = parent.fork("counted")
    forked = _in_use(engine, parent)
    child.run(extend=True, max_new_tokens=1, ignore_eos=True)
    checks.same("committed positions of the child", child.describe().committed, COMMITTED + 1)
    written = _in_use(engine, parent)
    child.close()
    checks.same("pages after the child was closed", _in_use(engine, parent), before)
    return forked - before, written - forked


def _in_use(engine: RemoteEngine, asked: RemoteSession) -> int:
    """Return the pages in use by the slab's accounting. The engine publishes it after each turn of its thread, so one
    request forces another turn."""
    asked.describe()
    return sum(slab.pages - slab.pages_free for slab in engine.statistics().slabs)
