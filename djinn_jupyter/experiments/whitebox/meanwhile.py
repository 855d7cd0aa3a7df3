"""Two requests at once: B runs to its end while A is stopped inside the model; memory before, during, after."""

from __future__ import annotations

import time
from typing import Any

from djinn_jupyter.amounts import GIB
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.stops import Finished
from djinn_jupyter.experiments.configuration.whitebox import Concurrent
from djinn_jupyter.experiments.course import Course, Unmeasured, timed
from djinn_jupyter.experiments.memory import device_gigabytes, sampled
from djinn_jupyter.experiments.outcomes import paused
from djinn_jupyter.experiments.whitebox.trials import Reference


def run_meanwhile(
    course: Course, engine: RemoteEngine, wanted: Concurrent, layer: int, prompt: list[int], new: int, ref: Reference
) -> dict[str, Any]:
    """Return the fields of `concurrent_demo`. Succeeds when B ended within the pause and A is bitwise equal to the
    reference."""
    course.check_time()
    a, b = engine.session("request A", fresh=True), engine.session("request B", fresh=True)
    before = device_gigabytes(engine)
    a.clear()
    a.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(a.run(prompt, max_new_tokens=new, ignore_eos=True))
    begun = time.monotonic()
    with sampled(engine, begun) as curve:
        transfer = a.swap_out()
        other = (
            timed(lambda: b.run(prompt, max_new_tokens=new, ignore_eos=True)) if wanted.request_b_during_pause else None
        )
        while time.monotonic() - begun < wanted.pause_duration_seconds:
            time.sleep(0.02)  # the pause itself: A is stopped, the engine serves other requests
        on_device = a.describe().device_bytes
        during = curve.take()
    stood = time.monotonic() - begun
    _, back_ms = timed(a.swap_in)
    done = a.resume()
    ended = None if other is None or not isinstance(other[0], Finished) else other[0]
    within = ended is not None
    equal = isinstance(done, Finished) and ref.equals(done)
    course.tell(f"request B ended during A's pause: {within}; A bitwise equal: {equal}")
    alike = ended is not None and ref.equals(ended)
    a.close()
    b.close()
    not_asked = Unmeasured(reason="request_b_during_pause is false")
    not_ended = not_asked if other is None else Unmeasured(reason="request B did not end")
    return {
        "request_b_latency_ms": not_asked if other is None else other[1],
        "vram_before_pause_gb": before,
        "vram_during_pause_gb": during.gigabytes,
        "resume_restore_time_ms": back_ms,
        "request_b_tokens": not_ended if ended is None else len(ended.tokens),
        "request_b_ended_during_pause": within,
        "request_b_bitwise_equal": not_ended if ended is None else alike,
        "request_a_bitwise_equal": equal,
        "session_bytes_on_device": on_device,
        "session_bytes_moved": 0 if transfer is None else transfer.bytes_moved,
        "process_during_pause_gb": max(sample.process for sample in curve.samples) / GIB,
        "vram_samples_gb": curve.gigabytes(),
        "vram_samples_seconds": [sample.seconds for sample in curve.samples],
        "vram_measured_by": curve.measured_by,
        "vram_under_nap_gb": _under_sleep(engine),
        "pause_duration_seconds": stood,
        "weights_gb": engine.statistics().weight_bytes / GIB,
    }


def _under_sleep(engine: RemoteEngine) -> float:
    """Return the device memory (GiB) with the weights unloaded too."""
    engine.sleep()
    asleep = device_gigabytes(engine)
    engine.wake()
    return asleep
