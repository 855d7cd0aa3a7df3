"""The step of many sessions: 50 of 2,048 tokens on 13B-shaped weights that the card cannot hold at the same time.

Each stops half-way through the layers, all are alive together, and each is resumed when it was used longest ago. What
they do alone is kept for another turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from djinn_evaluation.benchmarks.gpu.kept import Kept
from djinn_evaluation.benchmarks.gpu.serving import TINY_PAGE, memory_of_card, scale_of, serving
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, per_position, saved, shape, weight_bytes
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Figure, Result, at_least, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.memory import Curve, sampled
from djinn_evaluation.outcomes import digest_of, finished, paused
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.amounts import GIB
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Finished
from djinn_jupyter.machine import main_memory
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Event, SessionSwapped

CARD: Final = 80 << 30
MOST_OF_A_CARD: Final = 0.95  # the other programs on it have the rest
MOST_OF_THE_HOST: Final = 0.8
SHARE: Final = 0.4  # of all sessions' pages that fit, where no card is imposed
NEW: Final = 8
Outcome = list[Any]  # the tokens, and the digest of the last logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`capacity` is what weights and pages may take, in bytes; `imposed` on the whole card, by its allocator. `host` is
    what the sessions that leave it may take: where it does not suffice they go on to the disk, which is slower."""

    sessions: int
    positions: int
    layer: int
    capacity: int
    host: int
    imposed: bool
    demand: int

    @classmethod
    def of(cls, setting: Setting, config: dict[str, Any], card: int | None) -> Plan:
        scale = scale_of(setting)
        sessions, positions = scale.of(50, 6), scale.of(2048, 6 * TINY_PAGE)
        weights = weight_bytes(config)
        pages = sessions * (positions + NEW) * per_position(config)
        imposed = card is not None and not setting.quick
        capacity = min(CARD, int(MOST_OF_A_CARD * card)) if card and imposed else weights + int(SHARE * pages)
        layer = config["num_hidden_layers"] // 2
        demand = weights + pages
        return cls(
            sessions=sessions,
            positions=positions,
            layer=layer,
            capacity=capacity,
            host=min(pages, int(MOST_OF_THE_HOST * main_memory().available)),
            imposed=imposed,
            demand=demand,
        )

    @property
    def options(self) -> dict[str, int]:
        return {"card_memory" if self.imposed else "device_memory": self.capacity, "host_memory": self.host}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The sessions as seen so far. `equal` says of each that was resumed whether its outcome is that of the
    session alone; `alive` are those that lived when the last one had stopped."""

    moved: list[Transfer]
    curve: Curve
    equal: list[bool] = field(default_factory=list)
    alive: int | None = None


def run(setting: Setting) -> Result:
    config = shape(THIRTEEN, scale_of(setting))
    plan = Plan.of(setting, config, memory_of_card())
    prompts = [random_tokens(plan.positions, config["vocab_size"], 100 + n) for n in range(plan.sessions)]
    kept = Kept.of("sessions", setting)
    with serving(saved(config), setting, **plan.options) as engine:
        for number, prompt in enumerate(prompts):
            if str(number) not in kept.found:
                kept.add(str(number), _alone(engine, prompt))
            setting.so_far((), f"{number + 1} of {plan.sessions} sessions alone")
        alone = [kept.found[str(number)] for number in range(plan.sessions)]
        course = _together(engine, plan, prompts, alone, setting)
    settings = {"shape": config, "plan": plan, "measured_by": course.curve.measured_by}
    moves = [_fields(transfer) for transfer in course.moved]
    return Result(
        benchmark="sessions",
        settings={**settings, "moves": moves},
        figures=tuple(_figures(plan, course)),
    )


def _fields(transfer: Transfer) -> dict[str, Any]:
    return {name: getattr(transfer, name) for name in transfer.__struct_fields__}


def _alone(engine: RemoteEngine, prompt: list[int]) -> Outcome:
    session = engine.session("alone", fresh=True)
    done = finished(session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
    outcome = _outcome(done)
    session.close()
    return outcome


def _outcome(done: Finished) -> Outcome:
    return [list(done.tokens), digest_of(done)]


def _together(
    engine: RemoteEngine, plan: Plan, prompts: list[list[int]], alone: list[Outcome], setting: Setting
) -> Course:
    """Stop every session, then resume each in the order of their stops: by then it was used longest ago."""
    sessions: list[RemoteSession] = []
    with sampled(engine) as curve, _moves_of(engine) as moved:
        course = Course(moved=moved, curve=curve)

        def keep(what: str, count: int) -> None:
            curve.take()
            setting.so_far(_figures(plan, course), f"{count} of {plan.sessions} sessions {what}")

        for number, prompt in enumerate(prompts):
            sessions.append(_stopped(engine, f"session {number}", plan.layer, prompt))
            keep("stopped", len(sessions))
        course = replace(course, alive=len(engine.sessions()))
        for session, expected in zip(sessions, alone, strict=True):
            done = finished(session.resume())
            course.equal.append(_outcome(done) == expected)
            keep("resumed", len(course.equal))
    for session in sessions:
        session.close()
    return course


def _stopped(engine: RemoteEngine, name: str, layer: int, prompt: list[int]) -> RemoteSession:
    session = engine.session(name, fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
    return session


@contextmanager
def _moves_of(engine: RemoteEngine) -> Iterator[list[Transfer]]:
    """Collect the moves of all sessions in the block, except what is only written through."""
    found, lock = list[Transfer](), threading.Lock()

    def hear(event: Event) -> None:
        if isinstance(event, SessionSwapped) and event.transfer.cause != "write_through":
            with lock:
                found.append(event.transfer)

    stop = engine.channel.listen("", hear)
    try:
        yield found
    finally:
        stop()


# --- what came of it -------------------------------------------------------------------------------------------------


def _figures(plan: Plan, course: Course) -> list[Figure]:
    what = f"{plan.sessions} sessions of {plan.positions:,} tokens in {plan.capacity / GIB:.4g} GiB"
    moved = list(course.moved)  # in the midst, others may still be coming
    out = [move for move in moved if move.direction == "out"]
    counts = [_count(f"{what}: moves off the device", len(out), 1)]
    if course.alive is not None:
        counts.append(_count(f"{what}: alive at the same time", course.alive, plan.sessions))
    if course.equal:
        resumed = len(course.equal)
        name = f"{what}: outputs equal to the session's alone, of {resumed} resumed"
        counts.append(_count(name, sum(course.equal), resumed))
    return [
        *counts,
        _of_capacity(
            f"{what}: the most that the engine counted", [one.accounted for one in course.curve.samples], plan
        ),
        _seen(f"{what}: the most that NVML saw", course, plan),
        *_speeds(what, moved),
    ]


def _count(name: str, found: int, least: int) -> Figure:
    return Figure(name=name, unit="of them", value=Spread.of([float(found)]), bar=at_least(least))


def _of_capacity(name: str, nbytes: list[int], plan: Plan) -> Figure:
    return Figure(name=name, unit="x", value=Spread.of([max(nbytes) / plan.capacity]), bar=at_most(1.0))


def _seen(name: str, course: Course, plan: Plan) -> Figure:
    nbytes = [sample.device for sample in course.curve.samples if sample.device is not None]
    if course.curve.measured_by == "NVML" and nbytes and plan.imposed:
        return _of_capacity(name, nbytes, plan)
    why = "no card is imposed" if course.curve.measured_by == "NVML" else course.curve.measured_by
    return Figure(name=name, unit="x", value=None, bar=at_most(1.0), not_run=why)


def _speeds(what: str, moved: list[Transfer]) -> Iterator[Figure]:
    """Yield the speed of the moves in each direction, as the engine timed them."""
    for direction in ("out", "in"):
        copied = [move for move in moved if move.direction == direction and move.bytes_moved and move.seconds]
        speeds = [move.bytes_moved / move.seconds / 1e9 for move in copied]
        name = f"{what}: moves {direction} that copied bytes"
        yield Figure(
            name=name, unit="GB/s", value=Spread.of(speeds), not_run=None if speeds else "no such move copied bytes"
        )
