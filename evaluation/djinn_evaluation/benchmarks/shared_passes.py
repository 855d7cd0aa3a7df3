"""The engine's thread among many notebooks: how much of it is the model's, and how much shared passes relieve it of.

Of a turn alone, the model's part: what plain `generate` computes for the same prompt and tokens. Of many notebooks that
take such turns, in rounds with runs whose tokens behind the stop share passes (`mode="fast"`) and with runs that do
not: the seconds of the engine's thread for a turn, and the turns a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from djinn_evaluation.benchmarks.measuring import Readings, take_turns
from djinn_evaluation.benchmarks.people import (
    ALONE,
    NEW,
    POSITIONS,
    PROMPTS,
    SHAPE,
    THINKING,
    THREAD,
    Crowd,
    alone_at_work,
    crowd_at_work,
)
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, compared, milliseconds
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.cores import seconds_computed
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.wire.nouns import Mode

NOTEBOOKS, NOTEBOOKS_OF_A_QUICK_RUN = 64, 16
ROUNDS = 3
MODES: tuple[Mode, Mode] = ("exact", "fast")


def run(setting: Setting) -> Result:
    shape, checks, figures = setting.shape(SHAPE), Checks(), list[Figure]()
    prompts = [random_tokens(POSITIONS, shape.vocabulary, seed) for seed in range(PROMPTS)]
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            figures.append(_models_part(plain, engine, prompts, setting))
            _, alone = alone_at_work(engine, prompts)
            setting.so_far(figures, "a turn alone")
            figures += _relief(engine, prompts, alone, setting, checks)
    settings = {"shape": shape, "positions": POSITIONS, "new_tokens": NEW, "thinking_seconds": THINKING}
    return Result(benchmark="shared_passes", settings=settings, figures=tuple(figures), checks=checks.counts)


def _models_part(plain: Worker, engine: RemoteEngine, prompts: Sequence[list[int]], setting: Setting) -> Figure:
    """Return the CPU seconds that plain `generate` takes for a turn's prompt and tokens, of those of the engine's
    thread."""

    def theirs() -> float:
        begun = seconds_computed(plain.pid) or 0.0
        for number in range(ALONE):
            plain.ask("generate", tokens=prompts[number % PROMPTS], new=NEW)
        return ((seconds_computed(plain.pid) or 0.0) - begun) / ALONE

    readings = take_turns(
        {"plain generate": theirs, THREAD: lambda: alone_at_work(engine, prompts)[0][THREAD]},
        rounds=setting.rounds(ROUNDS),
    )
    name = "the model's part of a turn alone, of the engine's thread"
    return compared(name, "plain generate", THREAD, readings, unit="CPU ms", each=milliseconds)


def _relief(
    engine: RemoteEngine,
    prompts: Sequence[list[int]],
    alone: Sequence[list[int]],
    setting: Setting,
    checks: Checks,
) -> Iterator[Figure]:
    notebooks = NOTEBOOKS_OF_A_QUICK_RUN if setting.quick else NOTEBOOKS
    crowds: dict[Mode, list[Crowd]] = {mode: [] for mode in MODES}

    def at_work(mode: Mode) -> float:
        crowds[mode].append(crowd_at_work([engine], notebooks, prompts, alone, setting, checks, mode))
        return crowds[mode][-1].thread_seconds / max(crowds[mode][-1].count, 1)

    rounds = setting.rounds(ROUNDS)
    thread: Readings = take_turns({mode: lambda mode=mode: at_work(mode) for mode in MODES}, rounds=rounds, warm_up=0)  # type: ignore[misc]
    speed: Readings = {mode: [one.count / one.seconds for one in crowds[mode]] for mode in MODES}
    name = f"of {notebooks} notebooks, with passes that they share over without"
    yield compared(f"{THREAD} for a turn {name}", "fast", "exact", thread, unit="CPU ms", each=milliseconds)
    yield compared(f"turns a second {name}", "fast", "exact", speed, unit="1/s")
