"""Bytes that move: sessions that leave and come back, against plain copies, and a model larger than its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import msgspec

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline, digest
from djinn_evaluation.benchmarks.harness import (
    Bar,
    Checks,
    Disagreement,
    Figure,
    Readings,
    Result,
    Setting,
    Shape,
    Spread,
    Worker,
    at_least,
    at_most,
    compared,
    differences,
    engine_of,
    pid_of,
    take_turns,
    worker,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.machine import versions
from djinn_evaluation.serving import random_tokens
from djinn_evaluation.validation.opening import weights_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Activity, Tier

LENGTHS = {"short": 1000, "long": 4000}  # the fixed cost of a move, some milliseconds, weighs on the short
TIERS_OF_SWAP: dict[str, tuple[Tier, ...]] = {"short": ("host", "disk"), "long": ("host",)}
WINDOW = Shape(positions=4096)
ROUNDS_OF_SWAP = 7


def run_swap(setting: Setting) -> Result:
    """A session is swapped to the host and the disk and back, against plain copies of the same bytes."""
    shape, checks = setting.shape(WINDOW), Checks()
    folder = setting.model(shape)
    figures: list[Figure] = []
    nbytes: dict[str, int] = {}
    lengths = {name: min(length, shape.positions - 24) for name, length in LENGTHS.items()}
    with engine_of(folder, setting) as engine:
        for name, length in lengths.items():
            prompt = random_tokens(length, shape.vocabulary)
            found, nbytes[name] = moves(engine.session(name, fresh=True), prompt, TIERS_OF_SWAP[name], setting, checks)
            figures += found
            setting.so_far(figures, f"up to {length:,} positions")
    return Result(
        benchmark="swap",
        settings={"shape": shape, "positions": lengths, "bytes": nbytes, "rounds": setting.rounds(ROUNDS_OF_SWAP)},
        figures=tuple(figures),
        checks=checks.counts,
    )


def moves(
    session: RemoteSession, prompt: list[int], tiers: Sequence[Tier], setting: Setting, checks: Checks
) -> tuple[list[Figure], int]:
    """Move a session of this prompt to each tier and back; return the figures and the bytes of a move."""
    mover = _Mover(session, prompt, checks)
    times = _times(mover, tiers, setting, setting.rounds(ROUNDS_OF_SWAP))
    return _figures_of_swap(f"{len(prompt):,} positions", times, mover.nbytes, tiers), mover.nbytes


def _times(mover: _Mover, tiers: Sequence[Tier], setting: Setting, rounds: int) -> dict[str, list[float]]:
    with worker("plain.Link") as copying:
        mover.out("host")
        mover.back("host")
        folder = str(setting.home) if "disk" in tiers else None
        copying.ask("prepare", nbytes=mover.nbytes, folder=folder, threads=setting.threads)
        times = take_turns(_sides(mover, copying, tiers), rounds=rounds)
    mover.ends_as_it_began()
    return times


class _Mover:
    """Swaps one session and measures the seconds that a client waits for each move."""

    def __init__(self, session: RemoteSession, prompt: list[int], checks: Checks) -> None:
        self._session, self._prompt, self._checks = session, prompt, checks
        self.nbytes = 0
        self._fill()
        self._logits = digest(session.logits())

    def _fill(self) -> None:
        """Run the same tokens anew, which makes every page dirty."""
        self._session.run(self._prompt, max_new_tokens=0, ignore_eos=True)

    def out(self, tier: Tier) -> float:
        self._fill()
        begun = perf_counter()
        transfer = self._session.swap_out(tier)
        seconds = perf_counter() - begun
        assert transfer is not None
        if self.nbytes:
            self._checks.same("bytes out", transfer.bytes_moved, self.nbytes)
        self.nbytes = transfer.bytes_moved
        return seconds

    def back(self, tier: Tier) -> float:
        """Swap the session out to `tier`, then measure its return from there."""
        self._session.swap_in()
        self._session.swap_out(tier)
        begun = perf_counter()
        transfer = self._session.swap_in()
        seconds = perf_counter() - begun
        assert transfer is not None
        self._checks.same("the tier it came from", transfer.tier, tier)
        self._checks.same("bytes in", transfer.bytes_moved, self.nbytes)
        return seconds

    def ends_as_it_began(self) -> None:
        self._checks.same("logits after all moves", digest(self._session.logits()), self._logits)
        self._session.swap_out()
        self._session.swap_in()
        transfer = self._session.swap_out()
        self._checks.same("bytes that a second leaving moved", transfer and transfer.bytes_moved, 0)


def _sides(mover: _Mover, copying: Worker, tiers: Sequence[Tier]) -> dict[str, Callable[[], float]]:
    sides: dict[str, Callable[[], float]] = {}
    for tier in tiers:
        sides[f"out to the {tier}"] = partial(mover.out, tier)
        sides[f"in from the {tier}"] = partial(mover.back, tier)
    for name, direction in {"copy": "out", "copy back": "in"}.items():
        sides[name] = partial(copying.seconds, "copy", directions=[direction], streams=1, pinned=True)
    sides["copy to new memory"] = partial(copying.seconds, "copy_to_new_memory")
    return sides | {name: partial(copying.seconds, name) for name in (("read", "write") if "disk" in tiers else ())}


class _Against(NamedTuple):
    """A move by Djinn and the plain copy that it is compared with."""

    name: str
    ours: str
    plain: str
    bar: Bar | None = None


OF_THE_HOST = (
    _Against("swap out to the host", "out to the host", "copy", at_least(0.85)),
    _Against(
        "swap in from the host, to memory that was given back", "in from the host", "copy to new memory", at_least(0.85)
    ),
    _Against("swap in from the host, against memory in use", "in from the host", "copy back"),
)
OF_THE_DISK = (
    _Against("swap out to the disk, with checksums", "out to the disk", "write"),
    _Against("swap in from the disk, with checksums", "in from the disk", "read"),
)


def _figures_of_swap(length: str, times: dict[str, list[float]], nbytes: int, tiers: Sequence[Tier]) -> list[Figure]:
    return [
        compared(
            f"{length}: {name}: speed against a plain {plain}",
            *(plain, ours, {side: times[side] for side in (ours, plain)}),
            unit="GB/s",
            each=lambda seconds: nbytes / seconds / 1e9,
            bar=bar,
        )
        for name, ours, plain, bar in (*OF_THE_HOST, *(OF_THE_DISK if "disk" in tiers else ()))
    ]


POSITIONS = 900
TIERS_OF_PREFETCH: tuple[Tier, ...] = ("host", "disk")
ROUNDS_OF_PREFETCH = 7
PATIENCE_SECONDS = 60
MILLISECONDS = 1e3


def run_prefetch(setting: Setting) -> Result:
    """The wait for a swapped-out session when it is used again: without a signal, with one from the cell that is about
    to use it, and with one from the notebook's focus some time before."""
    shape, checks, rounds = setting.shape(), Checks(), setting.rounds(ROUNDS_OF_PREFETCH)
    with engine_of(setting.model(shape), setting) as engine:
        session = engine.session("wanted", fresh=True)
        figures = waits(
            engine, session, random_tokens(POSITIONS, shape.vocabulary), TIERS_OF_PREFETCH, setting, rounds, checks
        )
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
    """Continue a session after each preparation; return the waits for it. `before` are figures found earlier."""
    user = _User(engine, session, checks)
    session.run(prompt, max_new_tokens=1, ignore_eos=True)
    sides: dict[str, Callable[[], float]] = {"here": user.stays}
    for tier in tiers:
        sides |= _of(user, tier)
    times = take_turns(sides, rounds=rounds, after=setting.after_rounds(_figures_of_prefetch, rounds, before))
    return _figures_of_prefetch(times)


def _figures_of_prefetch(times: Readings) -> tuple[Figure, ...]:
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


SHAPE = Shape(layers=12, width=512, heads=8, vocabulary=1000)  # 12 layers of 12 MiB
BUDGET = 80 << 20
QUICK = Shape(layers=12, width=128, heads=4, vocabulary=512)
QUICK_BUDGET = 6 << 20
PROMPT, NEW, ROUNDS_OF_STREAMING = 4, 12, 9
SESSIONS = (1, 2, 4, 8)
SIDE_BY_SIDE = "computing and copying side by side"  # by plain PyTorch, no layer waiting for its bytes
OFFLOADS = {"disk": "accelerate, offloaded to disk", "cpu": "accelerate, offloaded to host memory"}


def run_streaming(setting: Setting) -> Result:
    """A model larger than its allowed memory: tokens/s and bytes, against copying and computing alone.

    The same budget and the same model through accelerate's offload, and several sessions in lockstep."""
    shape, budget = (QUICK, QUICK_BUDGET) if setting.quick else (SHAPE, BUDGET)
    rounds, checks = setting.rounds(ROUNDS_OF_STREAMING), Checks()
    prompt = random_tokens(PROMPT, shape.vocabulary)
    with ExitStack() as stack:
        plain = stack.enter_context(worker("plain"))
        folder = setting.saved(plain, shape)
        plain.ask("generate", tokens=prompt, new=2)
        expected = plain.ask("generate", tokens=prompt, new=NEW)["tokens"]
        engine = stack.enter_context(engine_of(folder, setting, device_memory=budget, page_positions=16))
        placed = weights_of(engine)
        others, absent = _offloaded(stack, folder, setting, placed.bytes_on_device)
        moved: list[float] = []
        sides: dict[str, Callable[[], float]] = {
            "djinn": _ours(engine, prompt, expected, checks, moved),
            "computing alone": lambda: plain.ask("generate", tokens=prompt, new=NEW)["decoding"] / (NEW - 1),
            "copying alone": lambda: plain.seconds("copy", nbytes=placed.bytes_streamed_per_pass, slot=_slot(shape)),
            SIDE_BY_SIDE: _side_by_side(plain, prompt, expected, checks, placed.bytes_streamed_per_pass, _slot(shape)),
            **{name: _theirs(other, prompt, expected, checks) for name, other in others.items()},
        }
        readings = take_turns(sides, rounds=rounds)
        setting.so_far(
            _figures_of_streaming(readings, moved[-rounds:], absent), "one session, not yet sessions in lockstep"
        )
        together = _lockstep(engine, shape, plain, setting.rounds(3), checks)
        copies = [copy.bytes_moved / copy.seconds / 1e9 for copy in engine.copies()]
        anonymous = {"djinn": _anonymous(pid_of(engine)), **{n: _anonymous(o.pid) for n, o in others.items()}}
    settings = {
        "shape": shape,
        "budget_bytes": budget,
        "weights": msgspec.to_builtins(placed),
        "new_tokens": NEW,
        "rounds": rounds,
        "sessions": SESSIONS,
        "anonymous_bytes_at_the_end": anonymous,
        "versions": versions(["accelerate"]),
    }
    a_copy = Figure(name="a layer copy", unit="GB/s", value=Spread.of(copies))
    figures = (*_figures_of_streaming(readings, moved[-rounds:], absent), a_copy, *_of_sessions(together))
    return Result(benchmark="streaming", settings=settings, figures=figures, checks=checks.counts)


def _slot(shape: Shape) -> int:
    """Return about a layer's bytes in fp32: four square matrices of attention, eight of the MLP."""
    return 12 * shape.width**2 * 4


def _ours(
    engine: RemoteEngine, prompt: list[int], expected: list[int], checks: Checks, moved: list[float]
) -> Callable[[], float]:
    """Measure one session's seconds a token by its reply; moved bytes over streamed ones of a pass go to `moved`."""
    session = engine.session("streaming", fresh=True)

    def seconds() -> float:
        before, begun = weights_of(engine), perf_counter()
        done: Any = session.run(prompt, max_new_tokens=NEW, ignore_eos=True)
        took, after = perf_counter() - begun, weights_of(engine)
        checks.same("new tokens of djinn and plain", list(done.tokens), expected)
        moved.append((after.bytes_moved - before.bytes_moved) / after.bytes_streamed_per_pass / NEW)
        return took / NEW

    return seconds


def _side_by_side(
    plain: Worker, prompt: list[int], expected: list[int], checks: Checks, nbytes: int, slot: int
) -> Callable[[], float]:
    """Measure seconds a token where a pass of copying runs beside each pass: on a CPU both share one memory bus."""

    def seconds() -> float:
        answer = plain.ask("generate_and_copy", tokens=prompt, new=NEW, nbytes=nbytes, slot=slot)
        checks.same("new tokens of plain and plain beside copies", answer["tokens"], expected)
        return float(answer["decoding"]) / (NEW - 1)

    return seconds


def _theirs(other: Baseline, prompt: list[int], expected: list[int], checks: Checks) -> Callable[[], float]:
    def seconds() -> float:
        answer = other.ask("generate", tokens=prompt, new=NEW)
        checks.same("new tokens of accelerate and plain", answer["tokens"], expected)
        return float(answer["decoding"]) / (NEW - 1)

    return seconds


def _offloaded(
    stack: ExitStack, folder: str, setting: Setting, budget: int
) -> tuple[dict[str, Baseline], dict[str, str]]:
    """Return a worker for each way of offloading, and the reasons for the ways without one."""
    found, absent = {}, {}
    for to, name in OFFLOADS.items():
        try:
            other = stack.enter_context(baseline("offloads"))
            asked = {"dtype": "float32", "threads": setting.threads, "budget": budget, "to": to}
            loaded = other.ask("load", model=folder, **asked)
            if loaded["status"] == "success":
                found[name] = other
            else:
                absent[name] = loaded["reason"]
        except BaselineFailed as error:
            absent[name] = str(error)
    return found, absent


def _figures_of_streaming(readings: dict[str, list[float]], moved: list[float], absent: dict[str, str]) -> list[Figure]:
    limit = [max(pair) for pair in zip(readings["copying alone"], readings["computing alone"], strict=True)]
    both = [sum(pair) for pair in zip(readings["copying alone"], readings["computing alone"], strict=True)]
    per_token = {name: Spread.of(1000 * s for s in values) for name, values in readings.items()}
    figures = [
        Figure(
            name="streamed tokens/s, of what the slower of copying and computing alone would allow",
            unit="x",
            value=Spread.of(ratios(limit, readings["djinn"])),
            bar=at_least(0.9),
            sides={name: per_token[name] for name in ("djinn", "computing alone", "copying alone")},
            sides_unit="ms/token",
        ),
        Figure(
            name="streamed tokens/s, of what both at once attain",
            unit="x",
            value=Spread.of(ratios(readings[SIDE_BY_SIDE], readings["djinn"])),
            sides={name: per_token[name] for name in ("djinn", SIDE_BY_SIDE)},
            sides_unit="ms/token",
        ),
        Figure(
            name="plain computing and copying at once, of what the slower of them alone would allow",
            unit="x",
            value=Spread.of(ratios(limit, readings[SIDE_BY_SIDE])),
        ),
        Figure(
            name="streamed tokens/s, of copying and computing one after the other",
            unit="x",
            value=Spread.of(ratios(both, readings["djinn"])),
        ),
        Figure(
            name="bytes moved in a pass, of the streamed bytes",
            unit="x",
            value=Spread.of(moved),
            bar=at_most(1.05),
        ),
    ]
    for name in OFFLOADS.values():
        theirs = readings.get(name)
        figures.append(
            Figure(
                name=f"streamed tokens/s, of {name}",
                unit="x",
                value=None if theirs is None else Spread.of(ratios(theirs, readings["djinn"])),
                sides={side: per_token[side] for side in ("djinn", name) if side in per_token},
                sides_unit="ms/token",
                not_run=absent.get(name),
            )
        )
    return figures


def _lockstep(
    engine: RemoteEngine, shape: Shape, plain: Worker, rounds: int, checks: Checks
) -> dict[int, list[tuple[float, float]]]:
    """Return, by number of sessions, tokens a second of all, and passes over the weights for one of each."""
    prompts = [random_tokens(PROMPT, shape.vocabulary, seed) for seed in range(max(SESSIONS))]
    expected = [plain.ask("generate", tokens=prompt, new=NEW)["tokens"] for prompt in prompts]
    sessions = [engine.session(f"lockstep {number}", fresh=True) for number in range(max(SESSIONS))]

    def one(session: RemoteSession, prompt: list[int]) -> list[int]:
        done: Any = session.run(prompt, max_new_tokens=NEW, ignore_eos=True)
        return list(done.tokens)

    found: dict[int, list[tuple[float, float]]] = {count: [] for count in SESSIONS}
    with ThreadPoolExecutor(max(SESSIONS)) as pool:
        for _ in range(rounds):
            for count in SESSIONS:
                before, begun = weights_of(engine).bytes_moved, perf_counter()
                came = list(pool.map(one, sessions[:count], prompts[:count]))
                seconds, after = perf_counter() - begun, weights_of(engine)
                for mine, plainly in zip(came, expected, strict=False):
                    checks.same("new tokens in lockstep and plain", mine, plainly)
                passes = (after.bytes_moved - before) / after.bytes_streamed_per_pass
                found[count].append((count * NEW / seconds, passes / NEW))
    return found


def _of_sessions(found: dict[int, list[tuple[float, float]]]) -> list[Figure]:
    figures = []
    for count, readings in found.items():
        alone = [speed for speed, _ in found[1]]
        if count > 1:
            figures.append(
                Figure(
                    name=f"tokens/s of {count} sessions in lockstep, of one alone",
                    unit="x",
                    value=Spread.of(ratios([speed for speed, _ in readings], alone)),
                    sides={
                        f"{count} sessions": Spread.of(speed for speed, _ in readings),
                        "one session": Spread.of(alone),
                    },
                    sides_unit="tokens/s",
                )
            )
        figures.append(
            Figure(
                name=f"passes over the weights for one pass of each of {count} sessions",
                unit="x",
                value=Spread.of(passes for _, passes in readings),
            )
        )
    return figures


def _anonymous(pid: int) -> int | None:
    """Return the bytes of a process that no file backs; None where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
