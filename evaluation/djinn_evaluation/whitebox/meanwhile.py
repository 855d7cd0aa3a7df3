"""Two requests at once: B runs to its end while A is stopped inside the model; both have the bits they have alone."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.configuration.whitebox import Concurrent
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.outcomes import paused
from djinn_evaluation.whitebox.trials import Reference
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished


def run_meanwhile(
    course: Course, engine: RemoteEngine, wanted: Concurrent, layer: int, prompt: list[int], new: int, ref: Reference
) -> dict[str, Any]:
    """Return the fields of request B in `concurrent_demo`. Succeeds when B ended within the pause and A is bitwise
    equal to the reference."""
    course.check_time()
    a, b = engine.session("request A", fresh=True), engine.session("request B", fresh=True)
    a.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(a.run(prompt, max_new_tokens=new, ignore_eos=True))
    other = timed(lambda: b.run(prompt, max_new_tokens=new, ignore_eos=True)) if wanted.request_b_during_pause else None
    done = a.resume()
    ended = None if other is None or not isinstance(other[0], Finished) else other[0]
    within, alike = ended is not None, ended is not None and ref.equals(ended)
    equal = isinstance(done, Finished) and ref.equals(done)
    course.tell(f"request B ended during A's pause: {within}; A bitwise equal: {equal}")
    a.close()
    b.close()
    not_asked = Unmeasured(reason="request_b_during_pause is false")
    not_ended = not_asked if other is None else Unmeasured(reason="request B did not end")
    return {
        "request_b_latency_ms": not_asked if other is None else other[1],
        "request_b_tokens": not_ended if ended is None else len(ended.tokens),
        "request_b_ended_during_pause": within,
        "request_b_bitwise_equal": not_ended if ended is None else alike,
        "request_a_bitwise_equal": equal,
    }
