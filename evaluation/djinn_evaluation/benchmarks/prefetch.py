"""The wait for a swapped-out session when it is used again: without a signal, with one from the cell that is about to
use it, and with one from the notebook's focus some time before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, perf_counter

from djinn_evaluation.benchmarks.measuring import Readings, Spread, differences, take_turns
from djinn_evaluation.benchmarks.results import Checks, Disagreement, Figure, Result
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import worker
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Activity, Tier

POSITIONS = 900
TIERS: tuple[Tier, ...] = ("host", "disk")
ROUNDS = 7
PATIENCE_SECONDS = 60
MILLISECONDS = 1e3


def run(setting: Setting) -> Result:
    shape, checks, rounds = setting.shape(), Checks(), setting.rounds(ROUNDS)
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine:
        session = engine.session("wanted", fresh=True)
        figures = waits(engine, session, random_tokens(POSITIONS, shape.vocabulary), TIERS, setting, rounds, checks)
    return Result(
        benchmark="prefetch",
        settings={"shape": shape, "positions": POSITIONS, "rounds": rounds},
        figures=figures,
        checks=checks.counts,
    )


def waits(
    engine: RemoteEngine,
    session: RemoteSession,
    prompt: list[int],
    tiers: Sequence[Tier],
    setting: Setting,
    rounds: int,
    checks: Checks,
    before: Sequence[Figure] = (),
) -> tuple[Figure, ...]:
    """Continue a session of this prompt after each preparation; return by how much it was waited for. `before` are
    figures that were found earlier."""
    user = _User(engine, session, checks)
    session.run(prompt, max_new_tokens=1, ignore_eos=True)
    sides: dict[str, Callable[[], float]] = {"here": user.stays}
    for tier in tiers:
        sides |= _of(user, tier)
    times = take_turns(sides, rounds=rounds, after=setting.after_rounds(_figures, rounds, before))
    return _figures(times)


def _figures(times: Readings) -> tuple[Figure, ...]:
    return tuple(_figure(name, times[name], times["here"]) for name in times if name != "here")


def _of(user: _User, tier: Tier) -> dict[str, Callable[[], float]]:
    return {
        f"{tier}, untold": lambda: user.comes_back(tier),
        f"{tier}, told by the cell": lambda: user.comes_back(tier, "expected"),
        f"{tier}, told by the focus": lambda: user.comes_back(tier, "focused", in_time=True),
    }


class _User:
    """Continues a session by one token, each time after another preparation."""

    def __init__(self, engine: RemoteEngine, session: RemoteSession, checks: Checks) -> None:
        self._engine, self.session, self._checks = engine, session, checks

    def stays(self) -> float:
        self.session.swap_in()
        return self._goes_on()

    def comes_back(self, tier: Tier, signal: Activity | None = None, *, in_time: bool = False) -> float:
        """Swap out, send `signal`, and continue. `in_time`: first wait until the session is resident again."""
        self._say("idle")
        self._say("blurred")
        self.session.swap_in()
        self.session.swap_out(tier)
        self._checks.same("where it is before", self.session.describe().residency, tier)
        if signal is not None:
            self._say(signal)
        deadline = monotonic() + PATIENCE_SECONDS
        while in_time and self.session.describe().residency != "resident":
            if monotonic() > deadline:
                raise Disagreement(f"A session of the focused notebook was not back after {PATIENCE_SECONDS} s.")
        return self._goes_on()

    def _goes_on(self) -> float:
        begun = perf_counter()
        self.session.run([], max_new_tokens=1, extend=True, ignore_eos=True)
        return perf_counter() - begun

    def _say(self, activity: Activity) -> None:
        self._engine.channel.ask(ask.Note(session=self.session.name, activity=activity))


def _figure(name: str, times: list[float], here: list[float]) -> Figure:
    return Figure(
        name=f"a token more of a session on the {name}: longer than one that is here",
        unit="ms",
        value=Spread.of(differences(times, here, MILLISECONDS)),
        sides={"away": Spread.of(t * MILLISECONDS for t in times), "here": Spread.of(t * MILLISECONDS for t in here)},
        sides_unit="ms",
    )
