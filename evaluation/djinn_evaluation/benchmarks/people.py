"""The growth of an engine with its users, its thread among many notebooks, and the price of its log."""

from __future__ import annotations

import os
import random
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil

from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.harness import (
    UNSAID,
    Checks,
    Figure,
    Readings,
    Result,
    Setting,
    Shape,
    Spread,
    Stopwatch,
    Worker,
    both_sides,
    compared,
    engine_of,
    in_milliseconds,
    milliseconds,
    pid_of,
    take_turns,
)
from djinn_evaluation.machine import seconds_computed
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.link.channel import SocketChannel, expect
from djinn_jupyter.link.io_thread import IoThread
from djinn_jupyter.wire.nouns import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of `users`: seconds until an answer, answers a second of all of them, and each resource's busy part."""

    users: int
    response_seconds: float
    per_second: float
    busy: Mapping[str, float]

    @property
    def busiest(self) -> str:
        return max(self.busy, key=lambda name: self.busy[name])


def load_of(users: int, thinking_seconds: float, demands: Mapping[str, float]) -> Load:
    """Return the load of so many users. `demands` are the seconds of each resource for one answer."""
    waiting = dict.fromkeys(demands, 0.0)
    response = per_second = 0.0
    for present in range(1, users + 1):
        at = {name: seconds * (1 + waiting[name]) for name, seconds in demands.items()}
        response = sum(at.values())
        per_second = present / (thinking_seconds + response)
        waiting = {name: per_second * seconds for name, seconds in at.items()}
    busy = {name: per_second * seconds for name, seconds in demands.items()}
    return Load(users=users, response_seconds=response, per_second=per_second, busy=busy)


SHAPE = Shape(layers=12, width=384, heads=6, vocabulary=8192)
NOTEBOOKS_OF_PEOPLE, ENGINES = (1, 4, 16, 64), (1, 2, 4)
FORETOLD = (256, 1024, 10_000)
POSITIONS_OF_PEOPLE, NEW, PROMPTS = 32, 8, 8
THINKING, SECONDS = 2.0, 20.0  # mean seconds between a notebook's turns; seconds of each crowd
ALONE = 16  # turns of one notebook that does not think
THREAD, OTHER_THREADS, LINE = "the engine's thread", "the engine's other threads", "a line of 1 Gbit/s"
LINE_BYTES_PER_SECOND = 1e9 / 8
Costs = Mapping[str, float]
"""Seconds of each resource for a turn."""


@dataclass(slots=True, kw_only=True)
class Turns:
    """One notebook's seconds until stops, first tokens, each token behind a stop, and of whole turns; bytes."""

    stops: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    wire_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The readings of notebooks on some engines, in CPU seconds of engines, their computing threads and clients."""

    notebooks: int
    engines: int
    seconds: float
    thread_seconds: float
    engine_seconds: float
    client_seconds: float
    turns: Sequence[Turns]

    @property
    def count(self) -> int:
        return sum(len(one.whole) for one in self.turns)


def run_people(setting: Setting) -> Result:
    """The growth of an engine with its users: 1 to 64 notebooks on 1, 2 and 4 engines of one model.

    Each notebook is a client with a connection of its own. In turn it thinks, runs a prompt to a stop in the middle
    of the model, reads the activation, and resumes it for some tokens. From what a turn of one notebook costs each
    resource (the engine's thread, its other threads, the line), a network of queues predicts the others, and up to
    10,000 notebooks; the prediction stands beside each measurement, and the resource that gives out first is named."""
    shape, checks, figures = setting.shape(SHAPE), Checks(), list[Figure]()
    prompts = [random_tokens(POSITIONS_OF_PEOPLE, shape.vocabulary, seed) for seed in range(PROMPTS)]
    costs: Costs = {}
    alone = list[list[int]]()
    folder = setting.model(shape)
    for engines in ENGINES[:2] if setting.quick else ENGINES:
        with ExitStack() as stack:
            running = [stack.enter_context(_engine(folder, number, setting)) for number in range(engines)]
            if engines == 1:
                costs, alone = alone_at_work(running[0], prompts)
                figures += [
                    Figure(name=f"a turn alone, of {resource}", unit="ms", value=_one(1000 * seconds))
                    for resource, seconds in costs.items()
                ]
            for notebooks in NOTEBOOKS_OF_PEOPLE[:3] if setting.quick else NOTEBOOKS_OF_PEOPLE:
                crowd = crowd_at_work(running, notebooks, prompts, alone, setting, checks)
                figures += _figures(crowd, costs)
                setting.so_far(figures, f"up to {notebooks} notebooks on {engines} engines")
            if engines == 1:
                figures += _room(running[0], prompts, costs)
    figures += [figure for notebooks in FORETOLD for figure in _foretold(notebooks, costs)]
    settings = {"shape": shape, "positions": POSITIONS_OF_PEOPLE, "new_tokens": NEW, "thinking_seconds": THINKING}
    return Result(benchmark="people", settings=settings, figures=tuple(figures), checks=checks.counts)


def _engine(folder: str, number: int, setting: Setting) -> AbstractContextManager[RemoteEngine]:
    """Start an engine of its own of this model: of a folder of its own, with the same files."""
    place = setting.home / f"engine-{number}"
    place.mkdir(exist_ok=True)
    for file in Path(folder).iterdir():
        if not (place / file.name).exists():
            os.link(file, place / file.name)
    return engine_of(str(place), setting)


@contextmanager
def notebook(engine: RemoteEngine, name: str) -> Iterator[RemoteEngine]:
    """Reach the engine by a connection of its own, as the kernel of another notebook does."""
    assert engine.entry is not None
    thread = IoThread()
    channel = SocketChannel(thread, engine.entry, holder=name, user=name, notebook=f"{name}.ipynb")
    try:
        yield RemoteEngine(channel, engine.entry)
    finally:
        channel.close()
        thread.stop()


def alone_at_work(engine: RemoteEngine, prompts: Sequence[list[int]]) -> tuple[Costs, list[list[int]]]:
    """Return the seconds of each resource for a turn of one notebook, and the tokens that follow each prompt."""
    pid = pid_of(engine)
    with notebook(engine, "alone") as own:
        tokens = [_turn(own.session("alone", fresh=True), prompt, Turns()) for prompt in prompts]
        begun, thread_begun, sent = _computed_of_people(pid), thread_seconds(pid), own.wire_bytes
        for number in range(ALONE):
            _turn(own.session("alone", fresh=True), prompts[number % len(prompts)], Turns())
        thread = thread_seconds(pid) - thread_begun
        others, there = _computed_of_people(pid) - begun - thread, own.wire_bytes
        own.session("alone").close()
    carried = there.sent + there.received - sent.sent - sent.received
    costs = {THREAD: thread, OTHER_THREADS: others, LINE: carried / LINE_BYTES_PER_SECOND}
    return {resource: seconds / ALONE for resource, seconds in costs.items()}, tokens


def _computed_of_people(*pids: int) -> float:
    return seconds_computed(*pids) or 0.0


def thread_seconds(pid: int) -> float:
    """Return the CPU seconds of an engine's thread, which is the first of its process."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _turn(session: RemoteSession, prompt: list[int], turns: Turns, mode: Mode = "exact") -> list[int]:
    """Run to a stop, look, resume; return the tokens. Those behind the stop share passes where the mode is `fast`."""
    begun = perf_counter()
    session.breakpoint("resid_post.6", when="step == 0", once=True)
    stopped = expect(session.run(prompt, max_new_tokens=NEW, ignore_eos=True, mode=mode), Paused)
    turns.stops.append(perf_counter() - begun)
    assert stopped.hidden.shape[0] == len(prompt)
    watch, resumed = Stopwatch(), perf_counter()
    done = expect(session.resume(on_token=watch), Finished)
    ended = perf_counter()
    turns.firsts.append(watch.times[0] - resumed)
    turns.tokens.append((ended - resumed) / len(done.tokens))
    turns.whole.append(ended - begun)
    return list(done.tokens)


def crowd_at_work(
    engines: Sequence[RemoteEngine],
    notebooks: int,
    prompts: Sequence[list[int]],
    alone: Sequence[list[int]],
    setting: Setting,
    checks: Checks,
    mode: Mode = "exact",
) -> Crowd:
    """Have so many notebooks take turns for a while. Disagreement where one gets other tokens than `alone`."""
    seconds, turns = 5.0 if setting.quick else SECONDS, [Turns() for _ in range(notebooks)]
    over, names = threading.Event(), [f"notebook {number}" for number in range(notebooks)]

    def work(number: int, own: RemoteEngine) -> bool:
        """Take turns until it is over; return whether all tokens were those of the prompt alone."""
        thinking, one, alike = random.Random(number), turns[number], True
        sent = own.wire_bytes
        while not over.wait(thinking.expovariate(1 / THINKING)):
            which = thinking.randrange(PROMPTS)
            session = own.session(f"work {number}", fresh=True)
            alike &= _turn(session, prompts[which], one, mode) == alone[which]
        there = own.wire_bytes
        own.session(f"work {number}", fresh=True).close()
        one.wire_bytes = there.sent + there.received - sent.sent - sent.received
        return alike

    with ExitStack() as stack, ThreadPoolExecutor(notebooks) as pool:
        owns = [stack.enter_context(notebook(engines[n % len(engines)], name)) for n, name in enumerate(names)]
        pids, begun = [pid_of(engine) for engine in engines], perf_counter()
        thread_begun = sum(map(thread_seconds, pids))
        engine_begun, client_begun = _computed_of_people(*pids), _computed_of_people(os.getpid())
        working = [pool.submit(work, number, own) for number, own in enumerate(owns)]
        try:
            sleep(seconds)
        finally:
            over.set()
        alike = [one.result() for one in working]
        wrong = [name for name, same in zip(names, alike, strict=True) if not same]
        checks.same(f"notebooks of {notebooks} that got other tokens than alone", wrong, [])
        return Crowd(
            notebooks=notebooks,
            engines=len(engines),
            seconds=perf_counter() - begun,
            thread_seconds=sum(map(thread_seconds, pids)) - thread_begun,
            engine_seconds=_computed_of_people(*pids) - engine_begun,
            client_seconds=_computed_of_people(os.getpid()) - client_begun,
            turns=turns,
        )


def foretell(notebooks: int, engines: int, costs: Costs) -> Load:
    """Return the load of one of some engines that as many remote notebooks use."""
    return load_of(-(-notebooks // engines), THINKING, costs)


def _figures(crowd: Crowd, costs: Costs) -> Iterator[Figure]:
    where = f"notebooks {crowd.notebooks}, engines {crowd.engines}"
    foretold = foretell(crowd.notebooks, crowd.engines, costs)
    stops = [seconds for turns in crowd.turns for seconds in turns.stops]
    firsts = [seconds for turns in crowd.turns for seconds in turns.firsts]
    tokens = [seconds for turns in crowd.turns for seconds in turns.tokens]
    yield Figure(
        name=f"time to a stop, {where}",
        unit="ms",
        value=in_milliseconds(stops),
        sides={part: _one(1000 * _quantile(stops, share)) for part, share in (("p90", 0.9), ("p99", 0.99))},
        sides_unit="ms",
    )
    yield Figure(name=f"time to the first token behind a stop, {where}", unit="ms", value=in_milliseconds(firsts))
    yield Figure(name=f"time of a token, {where}", unit="ms", value=in_milliseconds(tokens))
    medians = [statistics.median(turns.stops) for turns in crowd.turns if turns.stops]
    if len(medians) > 1:
        slowest = max(medians) / statistics.median(medians)
        yield Figure(name=f"the slowest notebook, of the median one, {where}", unit="x", value=_one(slowest))
    yield Figure(
        name=f"turns a second, {where}",
        unit="1/s",
        value=_one(crowd.count / crowd.seconds),
        sides={"foretold": _one(foretold.per_second * crowd.engines)},
        sides_unit="1/s",
    )
    sent = [turns.wire_bytes / len(turns.whole) for turns in crowd.turns if turns.whole]
    yield Figure(name=f"bytes on the wire a turn, {where}", unit="bytes", value=Spread.of(sent))
    yield Figure(
        name=f"CPU seconds of an engine a turn, {where}",
        unit="CPU ms",
        value=_one(1000 * crowd.engine_seconds / max(crowd.count, 1)),
        sides={"clients": _one(1000 * crowd.client_seconds / max(crowd.count, 1))},
        sides_unit="CPU ms",
    )


def _room(engine: RemoteEngine, prompts: Sequence[list[int]], costs: Costs) -> Iterator[Figure]:
    """Yield how many notebooks, all at a stop, one engine's resources have room for; the first to give out first."""
    process, count = psutil.Process(pid_of(engine)), 16
    with ExitStack() as stack:
        before = _taken(engine, process)
        for number in range(count):
            own = stack.enter_context(notebook(engine, f"idle {number}"))
            session = own.session(f"idle {number}", fresh=True)
            session.breakpoint("resid_post.6")
            session.run(prompts[0], max_new_tokens=1, ignore_eos=True)
            stack.callback(session.close)
        each = {name: (now - before[name]) / count for name, now in _taken(engine, process).items()}
    rooms = {
        **{resource: (THINKING + sum(costs.values())) / seconds for resource, seconds in costs.items()},
        "memory for sessions on the device": _budget(engine).bytes_limit / each["device bytes"],
        "descriptors of the process": process.rlimit(psutil.RLIMIT_NOFILE)[0] / each["descriptors"],
    }
    ordered = sorted(rooms.items(), key=lambda item: item[1])
    yield Figure(name=f"gives out first on one engine: {ordered[0][0]}", unit="notebooks", value=_one(ordered[0][1]))
    for name, room in ordered:
        yield Figure(name=f"notebooks that one engine has room for, by {name}", unit="notebooks", value=_one(room))


def _taken(engine: RemoteEngine, process: psutil.Process) -> dict[str, float]:
    return {"device bytes": float(_budget(engine).bytes_taken), "descriptors": float(process.num_fds())}


def _budget(engine: RemoteEngine) -> Any:
    budget = engine.statistics().budget
    assert budget is not None
    return budget


def _foretold(notebooks: int, costs: Costs) -> Iterator[Figure]:
    """Yield what so many notebooks meet on one engine, and the engines on which they wait at most twice as long."""
    load, alone = foretell(notebooks, 1, costs), sum(costs.values())
    name = f"an answer for {notebooks:,} notebooks on one engine, foretold, which wait for {load.busiest}"
    yield Figure(name=name, unit="s", value=_one(load.response_seconds), sides=_busy(load))
    engines = 1
    while (load := foretell(notebooks, engines, costs)).response_seconds > 2 * alone:
        engines += 1
    yield Figure(
        name=f"engines for {notebooks:,} notebooks, foretold, where an answer takes at most twice its time alone",
        unit="engines",
        value=_one(engines),
        sides=_busy(load),
    )


def _busy(load: Load) -> dict[str, Spread]:
    return {f"busy part of {resource}": _one(part) for resource, part in load.busy.items()}


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def _one(value: float) -> Spread:
    return Spread(median=value, low=value, high=value, count=1)


NOTEBOOKS_OF_SHARED_PASSES, NOTEBOOKS_OF_A_QUICK_RUN = 64, 16
ROUNDS_OF_SHARED_PASSES = 3
MODES: tuple[Mode, Mode] = ("exact", "fast")


def run_shared_passes(setting: Setting) -> Result:
    """The engine's thread among many notebooks: how much of it is the model's, and how much shared passes relieve it
    of.

    Of a turn alone, the model's part: what plain `generate` computes for the same prompt and tokens. Of many
    notebooks that take such turns, in rounds with runs whose tokens behind the stop share passes (`mode="fast"`)
    and with runs that do not: the seconds of the engine's thread for a turn, and the turns a second."""
    shape, checks, figures = setting.shape(SHAPE), Checks(), list[Figure]()
    prompts = [random_tokens(POSITIONS_OF_PEOPLE, shape.vocabulary, seed) for seed in range(PROMPTS)]
    with both_sides(shape, setting) as (plain, engine):
        figures.append(_models_part(plain, engine, prompts, setting))
        _, alone = alone_at_work(engine, prompts)
        setting.so_far(figures, "a turn alone")
        figures += _relief(engine, prompts, alone, setting, checks)
    settings = {"shape": shape, "positions": POSITIONS_OF_PEOPLE, "new_tokens": NEW, "thinking_seconds": THINKING}
    return Result(benchmark="shared_passes", settings=settings, figures=tuple(figures), checks=checks.counts)


def _models_part(plain: Worker, engine: RemoteEngine, prompts: Sequence[list[int]], setting: Setting) -> Figure:
    """Return plain `generate`'s CPU seconds for a turn, of those of the engine's thread."""

    def theirs() -> float:
        begun = seconds_computed(plain.pid) or 0.0
        for number in range(ALONE):
            plain.ask("generate", tokens=prompts[number % PROMPTS], new=NEW)
        return ((seconds_computed(plain.pid) or 0.0) - begun) / ALONE

    readings = take_turns(
        {"plain generate": theirs, THREAD: lambda: alone_at_work(engine, prompts)[0][THREAD]},
        rounds=setting.rounds(ROUNDS_OF_SHARED_PASSES),
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
    notebooks = NOTEBOOKS_OF_A_QUICK_RUN if setting.quick else NOTEBOOKS_OF_SHARED_PASSES
    crowds: dict[Mode, list[Crowd]] = {mode: [] for mode in MODES}

    def at_work(mode: Mode) -> float:
        crowds[mode].append(crowd_at_work([engine], notebooks, prompts, alone, setting, checks, mode))
        return crowds[mode][-1].thread_seconds / max(crowds[mode][-1].count, 1)

    rounds = setting.rounds(ROUNDS_OF_SHARED_PASSES)
    thread: Readings = take_turns({mode: lambda mode=mode: at_work(mode) for mode in MODES}, rounds=rounds, warm_up=0)  # type: ignore[misc]
    speed: Readings = {mode: [one.count / one.seconds for one in crowds[mode]] for mode in MODES}
    name = f"of {notebooks} notebooks, with passes that they share over without"
    yield compared(f"{THREAD} for a turn {name}", "fast", "exact", thread, unit="CPU ms", each=milliseconds)
    yield compared(f"turns a second {name}", "fast", "exact", speed, unit="1/s")


Clock = Callable[[], float]
LEVELS = ("warning", "info", "debug")
POSITIONS_OF_LOGS, TOKENS, STEPS, ROUNDS_OF_LOGS = 32, 24, 6, 21


def run_logs(setting: Setting) -> Result:
    """The price of the log: a step of one layer, and generated tokens, while an engine tells of requests (info), or of
    turns and layers too (debug), against one that tells of neither (warning). Seconds of all threads of the engine:
    those that write the log are among them."""
    shape, checks, rounds = setting.shape(SHAPE), Checks(), setting.rounds(ROUNDS_OF_LOGS)
    prompt = random_tokens(POSITIONS_OF_LOGS, shape.vocabulary)
    folder = setting.model(shape)
    with ExitStack() as stack:
        sessions, clocks = {}, {}
        for number, level in enumerate(LEVELS, 1):
            engine = stack.enter_context(engine_of(folder, setting, copy=number, log_level=level))
            sessions[level] = engine.session("logs", fresh=True)
            clocks[level] = partial(_computed_of_logs, pid_of(engine))
        sides = [(level, sessions[level], clocks[level]) for level in LEVELS]
        steps = take_turns({level: partial(_step, *side, prompt) for level, *side in sides}, rounds=rounds)
        tokens = take_turns({level: partial(_token, *side, prompt, checks) for level, *side in sides}, rounds=rounds)
    figures = [*_compared("a step of one layer", steps), *_compared("a generated token", tokens)]
    settings = {"shape": shape, "positions": POSITIONS_OF_LOGS, "new_tokens": TOKENS, "steps": STEPS, "rounds": rounds}
    return Result(benchmark="logs", settings=settings, figures=tuple(figures), checks=checks.counts)


def _computed_of_logs(pid: int) -> float:
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
