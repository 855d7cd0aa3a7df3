"""Sessions that stand stopped, on Djinn's side and on eager's: as many, with the same prompts, for the same time, read
by the same counter, with nothing else at work; how many an imposed memory holds; and the memory by kind."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.baselines.asking import LEAST_VOCABULARY, Baseline
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.memory import (
    PROCESS,
    Counter,
    bytes_of_pages,
    counter_of,
    in_use,
    options_for_limit,
    pages_in_use,
)
from djinn_evaluation.serving import Outcome, engine_for, outcome_of, paused, run_alone, stopped_at
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import MemoryShortage
from djinn_jupyter.units import GIB, MIB, spell_bytes
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription

STOPS = "stops and states"  # the budget's name of this kind of holder
EXPLANATION = (
    "The slab grows on demand; preallocated is what it had before anything ran. Keys and values of a session are the "
    "pages that it took, the activation stack is what the engine holds more for its stop: both read before and after. "
    "Computed: positions in whole pages, and one hidden state [positions, features]."
)


def slab_bytes(engine: RemoteEngine) -> int:
    return sum(slab.bytes_allocated for slab in engine.statistics().slabs)


def read_breakdown(engine: RemoteEngine, layer: int, prompt: list[int], preallocated: int) -> dict[str, Any]:
    """Return the fields of `memory_breakdown`. `preallocated` bytes of the slab were allocated before anything ran."""
    (pages, stop), reading = _held_at_a_stop(engine, layer, prompt), engine.statistics()
    total = reading.device_bytes_total
    return {
        "vmu_slab_preallocated_gb": preallocated / GIB,
        "slab_allocated_gb": sum(slab.bytes_allocated for slab in reading.slabs) / GIB,
        "slab_limit_gb": max((slab.bytes_limit for slab in reading.slabs), default=0) / GIB,
        "model_weights_gb": reading.weight_bytes / GIB,
        "kv_cache_per_session_gb": pages / GIB,
        "kv_cache_per_session_gb_computed": bytes_of_pages(engine, len(prompt)) / GIB,
        "activation_stack_gb": stop / GIB,
        "activation_stack_gb_computed": _hidden(engine, len(prompt)) / GIB,
        "gpu_total_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "explanation": EXPLANATION,
    }


def sentences(breakdown: dict[str, Any], positions: int) -> list[str]:
    """Return the breakdown in the report's first sentences."""
    names = ("model_weights_gb", "kv_cache_per_session_gb", "activation_stack_gb")
    weights, session, hidden = (spell_bytes(breakdown[name] * GIB, 4) for name in names)
    return [
        f"Weights {weights}, once for all sessions. One of {positions} positions has {session} of "
        f"keys and values in whole pages, and {hidden} more while it is stopped."
    ]


def _held_at_a_stop(engine: RemoteEngine, layer: int, prompt: list[int]) -> tuple[int, int]:
    """Stop a session of its own; return the bytes of its pages and of its stop, by the engine's accounting."""
    before = engine.statistics()
    session = engine.session("breakdown", fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(session.run(prompt, max_new_tokens=1, ignore_eos=True))
    after = engine.statistics()
    session.close()
    return pages_in_use(after) - pages_in_use(before), _kept(after) - _kept(before)


def _kept(reading: EngineStatistics) -> int:
    holdings = () if reading.budget is None else reading.budget.holdings
    return sum(holding.bytes_held for holding in holdings if holding.kind == STOPS)


def _hidden(engine: RemoteEngine, positions: int) -> int:
    return positions * engine.description.hidden_size * (4 if engine.description.dtype == "float32" else 2)


PAUSE_FIELDS = """paused_sessions vram_before_pause_gb vram_at_stop_gb vram_during_pause_gb vram_under_nap_gb
    vram_released requires_full_gpu_for_pause kv_bytes_resident_during_pause session_bytes_on_device
    resume_restore_time_ms""".split()
PERIOD_SECONDS = 0.05
RELEASE_SECONDS = 8.0  # after the idle threshold, at most: memory is given back three seconds after the last move
NO_SLEEP = Unmeasured(reason="this side has no sleep of the weights")
NOTHING_TAKEN = Unmeasured(reason="the counter shows no more memory with the stops than without")
LEAST_STANDING = 100 * MIB  # of stops: the heap of a process grows and shrinks by tens of MiB by itself
DROWNED = Unmeasured(
    reason="less than 100 MiB of stops cannot be told from the process's heap: raise concurrent_demo.paused_sessions"
)
LEFT = Unmeasured(reason="sessions had left before all of them stood: concurrent_demo.idle_seconds is too short here")


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlan:
    """The pause requested of both sides."""

    layer: int
    prompts: tuple[list[int], ...]
    seconds: float
    idle_seconds: float
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReadings:
    """Bytes by one side's counter; `books`: its stops' by its own accounting, at their begin and end."""

    loaded: int  # the model has run, nothing stands
    stopped: int  # all stand, other requests gone
    during: tuple[tuple[float, int], ...]  # seconds since the last stop, and bytes, until the end of the pause
    asleep: int | None  # then, with the weights asleep; None where a side has no such thing
    measured_by: str
    books: tuple[int, int]
    gone: int = 0  # sessions that had left when `stopped` was read, so that it is not what all of them take

    @property
    def held(self) -> int:
        """At the end of the pause."""
        return self.during[-1][1]

    @property
    def released(self) -> bool | Unmeasured:
        """True where half of the stops' memory is gone at the end; few bytes of a process tell nothing."""
        taken, standing = self.stopped - self.loaded, self.books[0]
        if self.gone:
            return LEFT
        if taken <= 0:
            return NOTHING_TAKEN
        seen, booked = self.held <= self.loaded + taken / 2, self.books[1] <= standing / 2
        drowned = self.measured_by == PROCESS and standing < LEAST_STANDING and seen != booked
        return DROWNED if drowned else seen

    @property
    def needs_all(self) -> bool:
        """True where at no time of the pause there is less memory in use than before it."""
        least = self.held if self.asleep is None else min(self.held, self.asleep)
        return least >= self.loaded

    def fields(self, sessions: int) -> dict[str, Any]:
        samples = [nbytes for _, nbytes in self.during]
        return {
            "paused_sessions": sessions,
            "vram_before_pause_gb": self.loaded / GIB,
            "vram_at_stop_gb": self.stopped / GIB,
            "vram_during_pause_gb": self.held / GIB,
            "vram_variation_during_pause_gb": (max(samples) - min(samples)) / GIB,
            "vram_samples_gb": [nbytes / GIB for nbytes in samples],
            "vram_samples_seconds": [seconds for seconds, _ in self.during],
            "vram_under_nap_gb": NO_SLEEP if self.asleep is None else self.asleep / GIB,
            "vram_per_paused_session_mb": LEFT if self.gone else (self.stopped - self.loaded) / sessions / MIB,
            "books_of_stops_at_stop_gb": self.books[0] / GIB,
            "books_of_stops_during_pause_gb": self.books[1] / GIB,
            "paused_sessions_gone_at_stop": self.gone,
            "vram_measured_by": self.measured_by,
            "vram_released": self.released,
            "requires_full_gpu_for_pause": self.needs_all,
        }


def prompts_of(length: int, count: int) -> tuple[list[int], ...]:
    """Return different prompts of ids that every vocabulary has; each 31 go on in wider steps."""
    ids = LEAST_VOCABULARY - 1
    return tuple([1 + (at * (1 + number // ids) + number) % ids for at in range(length)] for number in range(count))


def pause_of_djinn(course: Course, model: str, device: str, wanted: PausePlan, **options: Any) -> dict[str, Any]:
    """Return Djinn's fields, on an engine of its own; on the CPU sessions leave for the disk."""
    course.check_time()
    tiers = {} if device.startswith("cuda") else {"host_memory": 0}
    with engine_for(course, model, idle_swap_seconds=wanted.idle_seconds, **{**options, **tiers}) as engine:
        assert engine.entry is not None
        with counter_of(engine.description.device, engine.entry.pid) as counter:
            return _djinn(course, engine, counter, wanted)


def _djinn(course: Course, engine: RemoteEngine, counter: Counter, wanted: PausePlan) -> dict[str, Any]:
    expected = _alone(engine, wanted)
    before = engine.statistics()
    loaded, slabs = counter.read(), slab_bytes(engine)
    sessions = [
        stopped_at(engine, f"paused {number}", wanted.layer, prompt, wanted.new)
        for number, prompt in enumerate(wanted.prompts, 1)
    ]
    stopped, standing, gone = counter.read(), engine.statistics(), _gone(engine, sessions)

    def going_on(stood: float) -> bool:
        course.check_time()
        left = not _resident(engine, sessions) and slab_bytes(engine) <= slabs
        longest = max(wanted.seconds, wanted.idle_seconds + RELEASE_SECONDS)
        return stood < wanted.seconds or (not left and stood < longest)

    during = _stand(counter, going_on)
    stood, resident = during[-1][0], _resident(engine, sessions)
    paused_now = engine.statistics()
    engine.sleep()
    found = PauseReadings(
        loaded=loaded,
        stopped=stopped,
        during=during,
        asleep=counter.read(),
        measured_by=counter.measured_by,
        books=(in_use(standing) - in_use(before), in_use(paused_now) - in_use(before)),
        gone=gone,
    )
    engine.wake()
    restored, equal = _gone_on(sessions, wanted, expected)
    course.tell(f"{len(sessions)} sessions stood for {stood:.1f} s: {resident} of their bytes are on the device")
    return {
        **found.fields(len(sessions)),
        "pause_least_seconds": wanted.seconds,
        "pause_duration_seconds": stood,
        "kv_bytes_resident_during_pause": pages_in_use(paused_now)
        - pages_in_use(before),  # by the engine's page tables
        "session_bytes_on_device": resident,  # by each session: with what it keeps for its stop
        "resume_restore_time_ms": statistics.median(restored),
        "resume_restore_times_ms": restored,
        "paused_sessions_bitwise_equal": equal,
    }


def _alone(engine: RemoteEngine, wanted: PausePlan) -> Outcome:
    """Run the first prompt alone, and leave twice, so that buffers are there and nothing else is."""
    session = engine.session("before the pause", fresh=True)
    found = outcome_of(session.run(wanted.prompts[0], max_new_tokens=wanted.new, ignore_eos=True))
    session.swap_out("disk")
    session.swap_in()
    session.swap_out("disk")
    session.close()
    return found


def _gone(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> int:
    """Return the number of sessions that have left the device, or are about to."""
    return sum(found.residency != "resident" for found in _described(engine, sessions))


def _resident(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> int:
    """Return the bytes of the sessions on the device; asking does not touch them."""
    return sum(found.device_bytes for found in _described(engine, sessions))


def _described(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> list[SessionDescription]:
    names = {session.name for session in sessions}
    return [found for found in engine.sessions() if found.name in names]


def _gone_on(sessions: Sequence[RemoteSession], wanted: PausePlan, expected: Outcome) -> tuple[list[float], bool]:
    """Resume all. Return the milliseconds to each first layer behind its stop, and whether the bits are equal."""
    restored = []
    for session in sessions:
        session.clear()
        restored.append(timed(session.step)[1])
    return restored, outcome_of(sessions[0].resume()) == expected


def _stand(counter: Counter, going_on: Callable[[float], bool]) -> tuple[tuple[float, int], ...]:
    """Read the counter again and again while `going_on` is true of the seconds since the beginning, and once more."""
    begun, found = time.monotonic(), []
    while going_on(stood := time.monotonic() - begun):
        found.append((stood, counter.read()))
        time.sleep(PERIOD_SECONDS)  # the pause itself: nothing is at work
    return (*found, (stood, counter.read()))


def pause_of_eager(eager: Baseline, device: str, wanted: PausePlan) -> dict[str, Any]:
    """Return eager's fields: stops by a hook that raises; request B is gone before they are read."""
    with counter_of(device, eager.process.pid) as counter:
        eager.ask("another", tokens=wanted.prompts[0], new=wanted.new)  # the first run is slow, and fills the allocator
        loaded = counter.read()
        stood = eager.ask("stand", prompts=list(wanted.prompts), layer=wanted.layer)
        other = eager.ask("another", tokens=wanted.prompts[0], new=wanted.new)
        stopped = counter.read()
        during = _stand(counter, lambda stood: stood < wanted.seconds)
        free = eager.ask("free")
        eager.ask("let_go")
    held = stood["tensor_bytes_held"]
    found = PauseReadings(
        loaded=loaded,
        stopped=stopped,
        during=during,
        asleep=None,
        measured_by=counter.measured_by,
        books=(held, held),
    )
    return {**found.fields(len(wanted.prompts)), **stood, **other, **free}


FULL_FIELDS = """sessions_until_full sessions_until_full_limit_gb sessions_until_full_reached
    sessions_until_full_refusal""".split()
NO_LIMIT = Unmeasured(reason="concurrent_demo.until_full_gb is not set")
NOT_FULL = Unmeasured(reason="it was not full: so many were asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Prompts to stop after `layer` in `limit` bytes of weights and stops; `new` tokens where one goes on."""

    limit: int
    layer: int
    prompts: tuple[list[int], ...]
    new: int

    def fields(self, standing: int, refusal: str | None) -> dict[str, Any]:
        return {
            "sessions_until_full": standing,
            "sessions_until_full_limit_gb": self.limit / GIB,
            "sessions_until_full_reached": refusal is not None,
            "sessions_until_full_refusal": NOT_FULL if refusal is None else refusal,
        }


def filled_by_djinn(course: Course, model: str, device: str, wanted: Filling, **options: Any) -> dict[str, Any]:
    """Return Djinn's fields, on an engine with so much memory; on the CPU sessions leave for the disk."""
    course.check_time()
    tiers = {} if device.startswith("cuda") else {"host_memory": 0}
    others = {name: value for name, value in options.items() if name not in ("card_memory", "device_memory")}
    imposed = {**others, **options_for_limit(wanted.limit), **tiers}
    with engine_for(course, model, **imposed) as engine:
        expected = run_alone(engine, wanted.prompts[0], wanted.new)
        sessions, refusal = _stopped_until_full(course, engine, wanted)
        standing, resident = _standing(engine, sessions)
        course.tell(f"{standing} sessions stand in {spell_bytes(wanted.limit)}, {resident} of them on the device")
        return {
            **wanted.fields(standing, refusal),
            "sessions_until_full_on_device": resident,
            "sessions_until_full_bitwise_equal": _is_alike(sessions, expected),
        }


def _stopped_until_full(
    course: Course, engine: RemoteEngine, wanted: Filling
) -> tuple[list[RemoteSession], str | None]:
    """Stop prompt after prompt; return the sessions, and the refusal where one found no memory."""
    sessions: list[RemoteSession] = []
    for number, prompt in enumerate(wanted.prompts, 1):
        course.check_time()
        try:
            sessions.append(stopped_at(engine, f"standing {number}", wanted.layer, prompt, wanted.new))
        except MemoryShortage as error:
            return sessions, str(error)
    return sessions, None


def _standing(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> tuple[int, int]:
    """Return the number of stopped sessions, and of those on the device."""
    there = [found for found in _described(engine, sessions) if found.state == "paused"]
    return len(there), sum(found.residency == "resident" for found in there)


def _is_alike(sessions: Sequence[RemoteSession], expected: Outcome) -> bool | Unmeasured:
    """Return whether the first session continues as it does alone, if the full memory has room for it."""
    if not sessions:
        return False
    try:
        sessions[0].clear()
        return outcome_of(sessions[0].resume()) == expected
    except MemoryShortage as error:
        return Unmeasured(reason=f"the first session found no memory to go on: {error}")


def filled_by_eager(eager: Baseline, wanted: Filling) -> dict[str, Any]:
    """Return the fields of eager's side, whose stops keep their tensors."""
    found = eager.ask("fill", prompts=list(wanted.prompts), layer=wanted.layer, limit=wanted.limit)
    return wanted.fields(found["standing"], found["refusal"])
