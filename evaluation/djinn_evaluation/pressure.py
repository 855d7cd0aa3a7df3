"""The run of `pressure`: the arithmetic, the spawning, the resuming in an order that defeats LRU, the comparison."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.configuration.sections import MemoryPressure, Whitebox
from djinn_evaluation.course import NOT_YET, Course, Unmeasured, now
from djinn_evaluation.link import Swaps, heard, measured_link
from djinn_evaluation.memory import (
    Curve,
    bytes_of,
    bytes_of_pages,
    in_use,
    limits_card,
    options_for_limit,
    sampled,
    weights_on_device,
)
from djinn_evaluation.serving import (
    Outcome,
    engine_for,
    foretold,
    outcome_of,
    prompt_of,
    require_whitebox,
    run_alone,
    shape_of,
    stopped_at,
)
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import EngineStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """In bytes; `capacity` for weights and pages together, `host` for swapped data (None: the file sets none)."""

    weights: int
    per_session: int
    sessions: int
    capacity: int
    capacity_imposed: bool
    capacity_accounted: bool  # by the engine's accounting, for no card is so small
    host: int | None

    @property
    def demand(self) -> int:
        return self.weights + self.sessions * self.per_session

    @property
    def exceeds(self) -> bool:
        return self.demand > self.capacity

    def sentences(self) -> list[str]:
        card = "imposed" if self.capacity_imposed else "of the device"
        lines = [
            f"Weights {_bytes(self.weights)} + {self.sessions} sessions x {_bytes(self.per_session)} of "
            f"keys and values = {_bytes(self.demand)}; capacity {_bytes(self.capacity)} ({card}).",
            f"Writing all of them through takes {_bytes(self.sessions * self.per_session)} of host memory"
            + (f"; there are {_bytes(self.host)}, the rest goes to disk." if self.host is not None else "."),
        ]
        if not self.exceeds:
            lines.append("The demand does not exceed the capacity: this run proves nothing and fails.")
        return lines


def arithmetic(
    engine: RemoteEngine, positions: int, sessions: int, imposed: int | None, host: int | None
) -> Arithmetic:
    """Compute the demand of sessions of so many `positions`, in whole pages."""
    reading = engine.statistics()
    limit = max((slab.bytes_limit for slab in reading.slabs), default=0) + reading.weight_bytes
    return Arithmetic(
        weights=reading.weight_bytes,
        per_session=bytes_of_pages(engine, positions),
        sessions=sessions,
        capacity=imposed if imposed is not None else limit,
        capacity_imposed=imposed is not None,
        capacity_accounted=imposed is not None and not limits_card(imposed),
        host=host,
    )


def _bytes(count: int) -> str:
    """Spell bytes with one more digit, so that sums can be checked."""
    return spell_bytes(count, 4)


# The memory that sessions hold on the device, summed over them, beside what the engine's accounting counts for all: a
# kind of holder that it forgot would be in the sum alone.
SECONDS, PERIOD_SECONDS = 30.0, 0.02  # for moves under way to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes on the device while nothing moves."""

    sessions: int  # each session asked for what it holds
    counted: int  # by the accounting: pages in use, working copies, stops and states

    def fields(self) -> dict[str, Any]:
        return {"held_by_sessions_gb": self.sessions / GIB, "counted_for_sessions_gb": self.counted / GIB}

    def failures(self) -> list[str]:
        if self.sessions <= self.counted:
            return []
        return [
            f"The sessions hold {spell_bytes(self.sessions)} on the device, and the engine's accounting counts "
            f"{spell_bytes(self.counted)}: something that they keep is not counted."
        ]


def held_by(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> Held:
    """Ask all sessions between two equal readings of the accounting. DjinnError where it does not come to rest."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        before = engine.statistics()
        found = sum(session.describe().device_bytes for session in sessions)
        after = engine.statistics()
        if _accounts(before) == _accounts(after):
            return Held(sessions=found, counted=in_use(after) - weights_on_device(after))
        time.sleep(PERIOD_SECONDS)  # sessions are on their way to another tier
    raise DjinnError("The engine went on moving sessions while none was asked for.")


def _accounts(reading: EngineStatistics) -> tuple[object, ...]:
    return reading.budget, reading.slabs, reading.tiers


LOG = "exp3_memory_pressure_final.log"
FILE = "memory_pressure_results.json"
FILES = (FILE,)
THREADS = 1
FIELDS = """num_sessions_spawned vram_progression vram_stats swap_latencies_ms total_elapsed_seconds swapping_active
    demand_gb capacity_gb capacity_imposed sessions_alive_max swap_events plateau_achieved outputs_equal_alone
    slab_books_gb link""".split()
LEAVING = 6  # sessions; an interval takes six readings
LEAST_HERTZ = 10
NO_DRIVER = Unmeasured(
    reason="without a GPU no driver counts memory, and the engine's own count keeps its limit by itself"
)
NO_CARD = Unmeasured(reason="the limit is one of weights and pages: no card is so small")


def run(course: Course, file: Whitebox) -> list[str]:
    """Write the result file; return the reasons why the run fails, none when it passes."""
    wanted = file.experiment.memory_pressure_test
    if wanted is None or not wanted.enabled:
        raise UsageError("experiment.memory_pressure_test is not enabled in this file.")
    count, inference = wanted.num_sessions, file.experiment.inference
    new, length = inference.continuation_tokens, inference.input_length
    require_whitebox(foretold(file.model.name), file)
    course.write_partial(FILE, FIELDS, {"num_sessions_requested": count})
    imposed, host = bytes_of(file.hardware.vram_limit_gb), bytes_of(file.hardware.host_limit_gb)
    options: dict[str, Any] = {"dtype": file.model.dtype, "page_positions": file.model.page_positions}
    with engine_for(
        course, file.model.name, host_memory=host, threads=THREADS, **options, **options_for_limit(imposed)
    ) as engine:
        require_whitebox(shape_of(engine), file)
        sums = arithmetic(engine, length + new, count, imposed, host)
        for sentence in sums.sentences():
            course.tell(sentence)
        if not sums.exceeds:
            return _proves_nothing(course, sums)
        prompts = [prompt_of(engine, length, seed=100 + number) for number in range(count)]
        course.tell(f"Running {count} sessions alone, for comparison")
        alone = []
        for prompt in prompts:
            course.check_time()
            alone.append(run_alone(engine, prompt, new))
        return _under_pressure(course, engine, wanted, sums, prompts, new, alone)


def _proves_nothing(course: Course, sums: Arithmetic) -> list[str]:
    sentence = (
        "The demand does not exceed the capacity, so nothing would have to leave; more sessions, or a smaller card."
    )
    fields = {"arithmetic": sums.sentences(), **_asked(sums), "status": "error", "error": sentence}
    course.write(FILE, {**dict.fromkeys(FIELDS, NOT_YET), **fields})
    return [sentence]


def resume_order(count: int) -> list[int]:
    """Return the order of spawning: what is needed next was used longest ago, so that LRU has evicted it."""
    return list(range(count))


def _under_pressure(
    course: Course,
    engine: RemoteEngine,
    wanted: MemoryPressure,
    sums: Arithmetic,
    prompts: list[list[int]],
    new: int,
    alone: list[Outcome],
) -> list[str]:
    begun = time.monotonic()
    progression: list[dict[str, Any]] = []
    with heard(engine, course, begun) as swaps, sampled(engine, begun) as curve:
        sessions = []
        for number, prompt in enumerate(prompts):
            course.check_time()
            sessions.append(stopped_at(engine, f"session {number + 1}", wanted.session_pause_layer, prompt, new))
            gigabytes = curve.take().gigabytes
            progression.append({"session": number + 1, "vram_gb": gigabytes, "timestamp": time.monotonic() - begun})
            course.write_partial(FILE, FIELDS, _so_far(sums, progression, swaps))
            course.tell(f"[Session {number + 1}/{len(prompts)}] stopped, device {spell_bytes(gigabytes * GIB, 4)}")
        alive = len(engine.sessions())
        spawned, held = curve.samples[-1].seconds, held_by(engine, sessions)
        equal = []
        for k in resume_order(len(prompts)):
            course.check_time()
            equal.append(outcome_of(sessions[k].resume()) == alone[k])
            course.tell(f"[Session {k + 1}/{len(prompts)}] resumed")
            resumed = {"sessions_alive_max": alive, "outputs_equal": sum(equal), "sessions_resumed": len(equal)}
            course.write_partial(FILE, FIELDS, {**_so_far(sums, progression, swaps), **resumed})
        _leave(course, sessions, prompts)
    fields = _fields(sums, progression, swaps, curve, alive, equal, spawned, time.monotonic() - begun)
    link = measured_link(course, engine.description.device)
    fields |= {**held.fields(), "link": link.fields(swaps.copies)}
    failures = _failures(fields, sums, len(prompts)) + link.failures(swaps.copies) + held.failures()
    course.undecided += left_open(fields)
    status = course.concluded(failures)
    fields["status"] = status if not failures else "partial" if all(equal) else "error"
    fields["failures"] = failures
    course.write(FILE, fields)
    return failures


def _leave(course: Course, sessions: list[RemoteSession], prompts: list[list[int]]) -> None:
    """Have some sessions leave with all their bytes to copy; under pressure those were copied before."""
    for session, prompt in zip(sessions[:LEAVING], prompts, strict=False):
        course.check_time()
        session.run(prompt, max_new_tokens=0, ignore_eos=True)
        session.swap_out()


def _so_far(sums: Arithmetic, progression: list[dict[str, Any]], swaps: Swaps) -> dict[str, Any]:
    """Return the file's fields so far, in case the run is broken off."""
    return {
        **_asked(sums),
        "num_sessions_spawned": len(progression),
        "vram_progression": list(progression),
        "swap_events": list(swaps.events),
        "swap_latencies_ms": swaps.latencies(),
        "swapping_active": swaps.first_out is not None,
    }


def _asked(sums: Arithmetic) -> dict[str, Any]:
    return {
        "num_sessions_requested": sums.sessions,
        "demand_gb": sums.demand / GIB,
        "capacity_gb": sums.capacity / GIB,
        "capacity_imposed": sums.capacity_imposed,
        "kv_per_session_gb": sums.per_session / GIB,
    }


def _fields(
    sums: Arithmetic,
    progression: list[dict[str, Any]],
    swaps: Swaps,
    curve: Curve,
    alive: int,
    equal: list[bool],
    spawned: float,
    elapsed: float,
) -> dict[str, Any]:
    used = curve.gigabytes()
    whole = max([sums.per_session, *(event["bytes"] for event in swaps.events)])  # a session with its stop, as it moves
    return {
        "timestamp": now(),
        "arithmetic": sums.sentences(),
        **_asked(sums),
        "num_sessions_spawned": len(progression),
        "vram_progression": progression,
        "vram_stats": {"min_gb": min(used), "max_gb": max(used), "avg_gb": statistics.fmean(used)},
        "vram_measured_by": curve.measured_by,
        "samples_per_second": len(curve.samples) / elapsed,
        "samples_per_second_least": curve.least_rate,
        "longest_gap_seconds": curve.longest_gap,
        "vram_samples": [
            [s.seconds, s.accounted / GIB, s.used / GIB, None if s.process is None else s.process / GIB]
            for s in curve.samples
        ],
        **_driver(sums, curve),
        "swap_latencies_ms": swaps.latencies(),
        "total_elapsed_seconds": elapsed,
        "swapping_active": swaps.first_out is not None,
        "sessions_alive_max": alive,
        "swap_events": swaps.events,
        "plateau_achieved": plateau(curve, swaps.first_out, spawned, 2 * whole, accounted=sums.capacity_accounted),
        "outputs_equal_alone": all(equal),
        "outputs_equal": sum(equal),
        "sessions_resumed": len(equal),
        "slab_books_gb": curve.peak_accounted / GIB,
    }


def _driver(sums: Arithmetic, curve: Curve) -> dict[str, Any]:
    """Return the driver's samples of the whole device, and the card that they are held against."""
    card = min((sample.card for sample in curve.samples if sample.card is not None), default=None)
    if card is None or not curve.by_driver:
        return {"driver_samples": NO_DRIVER, "card_gb": NO_DRIVER}
    imposed = NO_CARD if sums.capacity_accounted else sums.capacity / GIB
    return {"driver_samples": curve.by_driver, "card_gb": imposed if sums.capacity_imposed else card / GIB}


def plateau(curve: Curve, first_out: float | None, spawned: float, within: int, *, accounted: bool = False) -> bool:
    """Return whether use varied by at most `within` bytes from the first eviction to the last spawning."""
    if first_out is None:
        return False
    samples = [sample for sample in curve.samples if first_out <= sample.seconds <= spawned]
    flat = [s.used if s.device is None or accounted else s.device for s in samples]
    return bool(flat) and max(flat) - min(flat) <= within


def _failures(fields: dict[str, Any], sums: Arithmetic, count: int) -> list[str]:
    checks = {
        "Not all sessions were spawned.": fields["num_sessions_spawned"] == count,
        "Not all sessions were alive together.": fields["sessions_alive_max"] >= count,
        "An output differs from the session run alone.": fields["outputs_equal_alone"],
        "Nothing was evicted.": fields["swapping_active"],
        "Device use did not reach a plateau after the first eviction.": fields["plateau_achieved"],
        "Device memory was above the capacity.": fields["slab_books_gb"] <= fields["capacity_gb"],
        "The whole device held more than the card.": isinstance(fields["card_gb"], Unmeasured)
        or fields["vram_stats"]["max_gb"] <= fields["card_gb"],
    }
    return [sentence for sentence, held in checks.items() if not held]


def left_open(fields: dict[str, Any]) -> list[str]:
    """Return a sentence where other programs kept the cores from the sampling; else none."""
    if fields["samples_per_second_least"] >= LEAST_HERTZ:
        return []
    return [f"Memory was for a second sampled at less than {LEAST_HERTZ} Hz."]
