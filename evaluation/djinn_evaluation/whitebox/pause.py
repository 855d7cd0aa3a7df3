"""Sessions that stand stopped, on Djinn's side and on eager's: as many, with the same prompts, for the same time, read
by the same counter, with nothing else at work. No request orders their release; the counter tells of one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.baselines.asking import LEAST_VOCABULARY, Baseline
from djinn_evaluation.counter import PROCESS, Counter, counter_of
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.memory import in_use, pages_in_use
from djinn_evaluation.outcomes import digest_of, finished, paused
from djinn_evaluation.serving import engine_for
from djinn_evaluation.whitebox.breakdown import slab_bytes
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.units import GIB, MIB

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
    """The pause that both sides are asked for."""

    layer: int
    prompts: tuple[list[int], ...]
    seconds: float
    idle_seconds: float
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReadings:
    """Bytes by the counter of one side; `books` are those of its stops by its own accounting, when all stood and at the
    end of the pause."""

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
        """True where half of the stops' memory, or more, is no longer there at the end of the pause. Where few bytes
        stood, a process whose books say otherwise tells nothing."""
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
    """Return prompts of token ids that every vocabulary has, each another one: 31 begin differently, and the next 31 go
    on in wider steps."""
    ids = LEAST_VOCABULARY - 1
    return tuple([1 + (at * (1 + number // ids) + number) % ids for at in range(length)] for number in range(count))


# --- Djinn -----------------------------------------------------------------------------------------------------------


def pause_of_djinn(course: Course, model: str, device: str, wanted: PausePlan, **options: Any) -> dict[str, Any]:
    """Return the fields of Djinn's side, on an engine of its own. Without a GPU the host is the device: sessions leave
    for the disk there, for in host memory they would be where they were."""
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
    sessions = [_stopped(engine, wanted, number) for number in range(len(wanted.prompts))]
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


def _alone(engine: RemoteEngine, wanted: PausePlan) -> tuple[tuple[int, ...], str]:
    """Run the first prompt without a stop, leave and come back once, so that buffers are there; return its outcome. It
    leaves again before it ends: the engine gives its memory back then, which others would find free otherwise."""
    session = engine.session("before the pause", fresh=True)
    done = finished(session.run(wanted.prompts[0], max_new_tokens=wanted.new, ignore_eos=True))
    found = done.tokens, digest_of(done)
    session.swap_out("disk")
    session.swap_in()
    session.swap_out("disk")
    session.close()
    return found


def _stopped(engine: RemoteEngine, wanted: PausePlan, number: int) -> RemoteSession:
    session = engine.session(f"paused {number + 1}", fresh=True)
    session.breakpoint(f"resid_post.{wanted.layer}", when="step == 0")
    paused(session.run(wanted.prompts[number], max_new_tokens=wanted.new, ignore_eos=True))
    return session


def _gone(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> int:
    """Return how many of the sessions have left the device, or are about to."""
    names = {session.name for session in sessions}
    return sum(found.residency != "resident" for found in engine.sessions() if found.name in names)


def _resident(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> int:
    """Return the bytes of the sessions on the device; asking does not touch them."""
    names = {session.name for session in sessions}
    return sum(found.device_bytes for found in engine.sessions() if found.name in names)


def _gone_on(
    sessions: Sequence[RemoteSession], wanted: PausePlan, expected: tuple[tuple[int, ...], str]
) -> tuple[list[float], bool]:
    """Resume all. Return the milliseconds of each until its first layer behind the stop has run, and True where the
    first session ended with the bits of a run without a stop."""
    restored = []
    for session in sessions:
        session.clear()
        restored.append(timed(session.step)[1])
    done = finished(sessions[0].resume())
    return restored, (done.tokens, digest_of(done)) == expected


def _stand(counter: Counter, going_on: Callable[[float], bool]) -> tuple[tuple[float, int], ...]:
    """Read the counter again and again while `going_on` is true of the seconds since the beginning, and once more."""
    begun, found = time.monotonic(), []
    while going_on(stood := time.monotonic() - begun):
        found.append((stood, counter.read()))
        time.sleep(PERIOD_SECONDS)  # the pause itself: nothing is at work
    return (*found, (stood, counter.read()))


# --- eager -----------------------------------------------------------------------------------------------------------


def pause_of_eager(eager: Baseline, device: str, wanted: PausePlan) -> dict[str, Any]:
    """Return the fields of eager's side: stops by a hook that raises, which keep their tensors. Request B runs beside
    them, and is gone before the pause is read."""
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
