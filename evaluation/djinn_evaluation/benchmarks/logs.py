"""The price of the log: a step of one layer, and generated tokens, while an engine tells of requests (info), or of
turns and layers too (debug), against one that tells of neither (warning). Seconds of all threads of the engine: those
that write the log are among them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.measuring import Readings, take_turns
from djinn_evaluation.benchmarks.people import SHAPE
from djinn_evaluation.benchmarks.processes import UNSAID
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, compared, milliseconds
from djinn_evaluation.benchmarks.serving_engine import pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.cores import seconds_computed
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession

Clock = Callable[[], float]
LEVELS = ("warning", "info", "debug")
POSITIONS, TOKENS, STEPS, ROUNDS = 32, 24, 6, 21


def run(setting: Setting) -> Result:
    shape, checks, rounds = setting.shape(SHAPE), Checks(), setting.rounds(ROUNDS)
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with ExitStack() as stack:
        sessions, clocks = {}, {}
        for number, level in enumerate(LEVELS, 1):
            engine = dj.load(folder, threads=setting.threads, copy=number, log_level=level)
            stack.callback(engine.stop, force=True)
            sessions[level], clocks[level] = engine.session("logs", fresh=True), partial(_computed, pid_of(engine))
        sides = [(level, sessions[level], clocks[level]) for level in LEVELS]
        steps = take_turns({level: partial(_step, *side, prompt) for level, *side in sides}, rounds=rounds)
        tokens = take_turns({level: partial(_token, *side, prompt, checks) for level, *side in sides}, rounds=rounds)
    figures = [*_compared("a step of one layer", steps), *_compared("a generated token", tokens)]
    settings = {"shape": shape, "positions": POSITIONS, "new_tokens": TOKENS, "steps": STEPS, "rounds": rounds}
    return Result(benchmark="logs", settings=settings, figures=tuple(figures), checks=checks.counts)


def _computed(pid: int) -> float:
    seconds = seconds_computed(pid)
    if seconds is None:
        raise NotRun(UNSAID)
    return seconds


def _step(session: RemoteSession, clock: Clock, prompt: list[int]) -> float:
    """Return the seconds of one of STEPS steps, each a request with its stop."""
    session.clear()
    session.breakpoint("resid_post.0", once=True)
    session.run(prompt, max_new_tokens=1)
    begun = clock()
    for _ in range(STEPS):
        session.step()
    return (clock() - begun) / STEPS


def _token(session: RemoteSession, clock: Clock, prompt: list[int], checks: Checks) -> float:
    """Return the seconds of a generated token, the prompt's share included."""
    session.clear()
    begun = clock()
    done = session.run(prompt, max_new_tokens=TOKENS, ignore_eos=True, free=True)
    checks.same("tokens generated", len(done.tokens), TOKENS)
    return (clock() - begun) / TOKENS


def _compared(what: str, readings: Readings) -> list[Figure]:
    told = {"info": "with a line for each request and stop", "debug": "with a line for each turn and layer"}
    return [
        compared(f"{what} {words}, of one without", level, "warning", readings, unit="CPU ms", each=milliseconds)
        for level, words in told.items()
    ]
