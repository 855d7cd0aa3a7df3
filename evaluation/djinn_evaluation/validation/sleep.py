"""A session (the agent) that sleeps past the threshold while another works, is swapped out, and goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from djinn_evaluation.configuration.sections import AgentSleepResume, ValidationFile
from djinn_evaluation.course import NOT_YET, Course, Unmeasured, now, timed
from djinn_evaluation.link import TimedCopy, heard, measured_link
from djinn_evaluation.memory import Curve, bytes_of, sampled
from djinn_evaluation.serving import engine_for, finished, prompt_of
from djinn_evaluation.validation.opening import imposed, options_of, with_link, within
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import MemoryShortage

FILE = "agent_sleep_resume_results.json"
FIELDS = ("passed", "sleep_duration_seconds", "metrics", "timestamp")
PROMPT, FIRST, THEN = 96, 24, 24
AGENT, NEIGHBOUR = "agent", "neighbour"
RETRY_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Night:
    """The agent's tokens, milliseconds and gigabytes before, during and after its sleep, and its swaps."""

    initial: tuple[int, ...] = ()
    resumed: tuple[int, ...] = ()
    milliseconds: dict[str, float] = field(default_factory=dict)
    gigabytes: dict[str, float] = field(default_factory=dict)
    residency: str = ""
    agent_bytes: int = 0
    neighbour_runs: int = 0
    attempts: int = 0
    swaps: list[dict[str, Any]] = field(default_factory=list)
    copies: list[TimedCopy] = field(default_factory=list)
    equal: bool = False
    curve: Curve = field(default_factory=Curve)


def run(course: Course, file: ValidationFile, wanted: AgentSleepResume) -> dict[str, Any]:
    """Run the test; return the fields of the result file."""
    limit = imposed(file, file.hardware.vram_limit_gb)
    options = {
        "dtype": wanted.dtype,
        "card_memory": bytes_of(limit),
        "host_memory": bytes_of(wanted.host_swap_pool_gb),
        "idle_swap_seconds": wanted.idle_threshold_seconds,
        **options_of(course, file),
    }
    with engine_for(course, wanted.model_id, **options) as engine:
        night = _night(course, engine, wanted, file.server.timeout_seconds)
        link = measured_link(course, engine.description.device)
    fields = judge(wanted, night, limit_gb=file.hardware.vram_limit_gb, impossible=link.failures(night.copies))
    return {**_named(course, wanted), **with_link(fields, link, night.copies), "timestamp": now()}


def _named(course: Course, wanted: AgentSleepResume) -> dict[str, Any]:
    named = {"test": "agent_sleep_resume", "model": course.setup.named(wanted.model_id)}
    return {**named, "sleep_duration_seconds": wanted.sleep_duration_seconds}


def judge(
    wanted: AgentSleepResume, night: Night, *, limit_gb: float | None, impossible: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the verdict on a night, and its figures. `impossible`: why its copies cannot have been made."""
    out = [swap for swap in night.swaps if swap["direction"] == "out"]
    back = [swap for swap in night.swaps if swap["direction"] == "in"]
    slept = night.milliseconds["sleep"]
    peak = max(night.curve.gigabytes(), default=None)
    failures = {
        "The agent did not leave the device while it slept.": bool(out) and night.residency in ("host", "disk"),
        "The agent left for another reason than its sleep.": all(swap["cause"] == "idleness" for swap in out),
        "The agent left earlier than the idle threshold.": all(
            swap["idle_seconds"] >= wanted.idle_threshold_seconds for swap in out if swap["cause"] == "idleness"
        ),
        "The agent did not come back to the device.": bool(back),
        "The sleep was shorter than sleep_duration_seconds.": slept >= 1000 * wanted.sleep_duration_seconds,
        "The text differs from the run without sleep.": night.equal,
        "The device held more than its limit.": peak is None or limit_gb is None or peak <= limit_gb,
    }
    said = [sentence for sentence, held in failures.items() if not held] + list(impossible)
    return {
        "passed": not said,
        "failures": said,
        "metrics": {
            "initial_tokens": len(night.initial),
            "initial_time_ms": night.milliseconds["initial"],
            "resumed_tokens": len(night.resumed),
            "resumed_time_ms": night.milliseconds["resumed"],
            "sleep_duration_ms": slept,
            "gpu_mem_before_sleep_gb": night.gigabytes["before"],
            "gpu_mem_after_sleep_gb": night.gigabytes["asleep"],
            "gpu_mem_after_resume_gb": night.gigabytes["after"],
            "swaps_detected": len(out),
            "restores_detected": len(back),
            "coherence_score": Unmeasured(
                reason="no model of coherence is run: the text is compared bit for bit instead (text_equal)"
            ),
        },
        "text_equal": night.equal,
        "residency_after_sleep": night.residency,
        "agent_device_bytes_after_sleep": night.agent_bytes,
        "neighbour_runs_during_sleep": night.neighbour_runs,
        "resume_attempts": night.attempts,
        "swap_events": night.swaps,
    }


def _night(course: Course, engine: RemoteEngine, wanted: AgentSleepResume, timeout: float) -> Night:
    prompt = prompt_of(engine, PROMPT, seed=500)
    whole = _run(engine.session("awake", fresh=True), prompt, FIRST + THEN, timeout)
    expected = (whole.tokens, whole.logits.tobytes())
    engine.session("awake").close()
    agent, night, begun = engine.session(AGENT, fresh=True), Night(), time.monotonic()
    with heard(engine, course, begun) as swaps, sampled(engine, begun) as curve:
        first, night.milliseconds["initial"] = timed(lambda: _run(agent, prompt, FIRST, timeout))
        fell_asleep, resting = time.monotonic(), _resting_since(agent)
        night.gigabytes["before"] = curve.take().gigabytes
        course.write_partial(FILE, FIELDS, _so_far(course, wanted, first, night))
        _sleep(course, engine, wanted, night, timeout)
        night.milliseconds["sleep"] = 1000 * (time.monotonic() - fell_asleep)
        there = agent.describe()
        night.residency, night.agent_bytes = there.residency, there.device_bytes
        night.gigabytes["asleep"] = curve.take().gigabytes
        course.tell(f"idle detected: the agent is on the {there.residency} after {night.milliseconds['sleep']:.0f} ms")
        done, night.milliseconds["resumed"] = timed(lambda: _resumed(agent, wanted, night, timeout))
        night.gigabytes["after"] = curve.take().gigabytes
        course.tell(f"restored in the resume of {night.milliseconds['resumed']:.2f} ms")
        logits = done.logits.tobytes()
    night.initial, night.resumed, night.curve = first.tokens, done.tokens, curve
    night.equal = (first.tokens + done.tokens, logits) == expected
    night.copies = swaps.copies
    mine = [event for event in swaps.events if event["session"] == AGENT]
    night.swaps = [{**event, "idle_seconds": begun + event["timestamp"] - resting} for event in mine]
    return night


def _resting_since(agent: RemoteSession) -> float:
    """Return when the agent's rest began by the engine's clock; a reply here may come later."""
    asked = time.monotonic()
    return asked - agent.describe().idle_seconds


def _so_far(course: Course, wanted: AgentSleepResume, first: Finished, night: Night) -> dict[str, Any]:
    """Return the file's fields so far, in case the run is broken off in the sleep."""
    later = """resumed_tokens resumed_time_ms sleep_duration_ms gpu_mem_after_sleep_gb gpu_mem_after_resume_gb
        swaps_detected restores_detected coherence_score"""
    return {
        **_named(course, wanted),
        "metrics": {
            **dict.fromkeys(later.split(), NOT_YET),
            "initial_tokens": len(first.tokens),
            "initial_time_ms": night.milliseconds["initial"],
            "gpu_mem_before_sleep_gb": night.gigabytes["before"],
        },
    }


def _sleep(course: Course, engine: RemoteEngine, wanted: AgentSleepResume, night: Night, timeout: float) -> None:
    """Leave the agent idle while a neighbour generates, so that the engine itself is never idle."""
    neighbour, until = engine.session(NEIGHBOUR, fresh=True), time.monotonic() + wanted.sleep_duration_seconds
    prompt = prompt_of(engine, PROMPT, seed=501)
    while time.monotonic() < until:
        course.check_time()
        _run(neighbour, prompt, FIRST, timeout)
        night.neighbour_runs += 1


def _resumed(agent: RemoteSession, wanted: AgentSleepResume, night: Night, timeout: float) -> Finished:
    """Continue the agent's run; retry only where the engine had no room for it, which changes nothing."""
    while True:
        night.attempts += 1
        try:
            return _run(agent, None, THEN, timeout)
        except MemoryShortage:
            if night.attempts >= wanted.max_retries:
                raise
            time.sleep(RETRY_SECONDS)  # other sessions have to be swapped out first


def _run(session: RemoteSession, prompt: list[int] | None, new: int, timeout: float) -> Finished:
    """Run from the prompt, or without one continue the session's tokens."""
    return finished(
        within(timeout, lambda: session.run(prompt, max_new_tokens=new, ignore_eos=True, extend=prompt is None))
    )
