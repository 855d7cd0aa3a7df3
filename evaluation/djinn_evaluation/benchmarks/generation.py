"""Generation through client, socket and engine against plain `generate`, greedy, at 64 and at 1,024 positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.processes import UNSAID, Computing
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_least, compared
from djinn_evaluation.benchmarks.serving_engine import Stopwatch, engine_of, pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession

NEW = 48
PLACES = {64: 0.97, 1024: 1.0}
ROUNDS = 16


@dataclass(slots=True)
class Side:
    """One side's readings in each call, the warm-up's included. `decoding`: seconds from the first new token to the
    last; `computing`: CPU seconds of the process that ran the model, over the whole call."""

    computing: Computing
    decoding: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(), Checks()
    figures: list[Figure] = []
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
        with engine_of(folder, setting) as engine:
            session = engine.session("generation", fresh=True)
            for positions, bar in PLACES.items():
                sides = {"plain": Side(Computing(plain.pid)), "djinn": Side(Computing(pid_of(engine)))}
                prompt = random_tokens(positions - NEW, shape.vocabulary)
                whole = measure(prompt, session, plain, sides, setting.rounds(ROUNDS))
                for tokens, other in zip(sides["djinn"].tokens, sides["plain"].tokens, strict=True):
                    checks.same(f"new tokens at {positions} positions", tokens, other)
                figures += _figures(positions, bar, whole, sides)
                setting.so_far(figures, f"up to {positions} positions")
    settings = {"shape": shape, "new_tokens": NEW, "rounds": setting.rounds(ROUNDS)}
    return Result(benchmark="generation", settings=settings, figures=tuple(figures), checks=checks.counts)


def measure(
    prompt: list[int], session: RemoteSession, plain: Worker, sides: dict[str, Side], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of whole calls, in turns; the other readings go to `sides`."""

    def ours() -> float:
        side, watch = sides["djinn"], Stopwatch()
        side.computing.begin()
        begun = perf_counter()
        done = session.run(prompt, max_new_tokens=NEW, ignore_eos=True, on_token=watch)
        seconds = perf_counter() - begun
        side.computing.end()
        side.decoding.append(watch.decoding)
        side.tokens.append(list(done.tokens))
        return seconds

    def theirs() -> float:
        side = sides["plain"]
        side.computing.begin()
        answer = plain.ask("generate", tokens=prompt, new=NEW)
        side.computing.end()
        side.decoding.append(answer["decoding"])
        side.tokens.append(answer["tokens"])
        return float(answer["seconds"])

    return take_turns({"plain": theirs, "djinn": ours}, rounds=rounds)


def _figures(positions: int, bar: float, whole: dict[str, list[float]], sides: dict[str, Side]) -> list[Figure]:
    rounds = len(whole["djinn"])
    decoding = {name: side.decoding[-rounds:] for name, side in sides.items()}
    computing = {name: side.computing.readings[-rounds:] for name, side in sides.items()}
    return [
        compared(
            f"decode tokens/s at {positions} positions, of plain generate",
            *("plain", "djinn", decoding),
            unit="tokens/s",
            each=lambda seconds: (NEW - 1) / seconds,
            bar=at_least(bar),
        ),
        compared(
            f"whole call to {positions} positions with its prompt, of plain generate",
            *("plain", "djinn", whole),
            unit="s",
            bar=at_least(bar),
        ),
        compared(
            f"the same call in seconds computed by either process, of plain generate ({positions} positions)",
            *("plain", "djinn", computing),
            unit="s",
            not_run=None if all(computing.values()) else UNSAID,
        ),
    ]
