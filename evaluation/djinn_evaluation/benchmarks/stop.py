"""The time of a stop: from `run` to `Paused` after N layers, against running N layers by plain PyTorch."""

from __future__ import annotations

from time import perf_counter

from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, compared, milliseconds
from djinn_evaluation.benchmarks.resume import POSITIONS, layers_of
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession

ROUNDS = 9


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    figures: list[Figure] = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        plain.ask("remember", tokens=prompt)
        with engine_of(folder, setting) as engine:
            session = engine.session("stop", fresh=True)
            for layers in layers_of(shape):
                figures.append(_at(layers, prompt, session, plain, setting.rounds(ROUNDS), checks))
                setting.so_far(figures, f"up to layer {layers}")
    settings = {"shape": shape, "positions": POSITIONS, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="stop", settings=settings, figures=tuple(figures), checks=checks.counts)


def _at(layers: int, prompt: list[int], session: RemoteSession, plain: Worker, rounds: int, checks: Checks) -> Figure:
    session.clear()
    session.breakpoint(f"resid_post.{layers - 1}")

    def ours() -> float:
        begun = perf_counter()
        stop = session.run(prompt, max_new_tokens=1)
        seconds = perf_counter() - begun
        checks.same("layers run before the stop", stop.reply.layers_run, layers)
        return seconds

    readings = take_turns({"djinn": ours, "plain": lambda: plain.seconds("first_layers", count=layers)}, rounds=rounds)
    name = f"from run to Paused after {layers} layers of {POSITIONS} positions, of running {layers} layers"
    return compared(name, "djinn", "plain", readings, unit="ms", each=milliseconds)
