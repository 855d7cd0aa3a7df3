"""An edit at a stop, run twice: it must change the output, and equally both times."""

from __future__ import annotations

from typing import Any

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.experiments.configuration.whitebox import Steering
from djinn_jupyter.experiments.course import Course, timed
from djinn_jupyter.experiments.outcomes import digest_of, finished, paused
from djinn_jupyter.experiments.whitebox.trials import Reference, predicted_by


def run_steering(
    course: Course, engine: RemoteEngine, wanted: Steering, prompt: list[int], new: int, reference: Reference
) -> dict[str, Any]:
    """Return the fields of `activation_steering`. `token_diff_percent`: prompt positions whose most likely token
    differs."""
    course.check_time()
    session = engine.session("steering", fresh=True)
    first = _steered(session, wanted, prompt, new, engine.description.layers)
    second = _steered(session, wanted, prompt, new, engine.description.layers)
    plain_ms = _unedited(session, wanted, prompt, new)
    session.close()
    predicted, digest, tokens, steered_ms = first
    repeats = second[:3] == first[:3]
    differing = sum(a != b for a, b in zip(predicted, reference.predicted, strict=True))
    changed = digest != reference.digest or tokens != reference.tokens
    course.tell(f"steering at layer {wanted.steering_layer}: {differing} of {len(predicted)} positions differ")
    return {
        "layer": wanted.steering_layer,
        "scale": wanted.modification_factor,
        "output_changed": changed,
        "baseline_restore_time_ms": plain_ms,
        "steered_restore_time_ms": steered_ms,
        "token_diff_percent": 100 * differing / len(predicted),
        "steering_successful": changed and repeats,
        "repeats_bitwise": repeats,
    }


def _steered(
    session: RemoteSession, wanted: Steering, prompt: list[int], new: int, layers: int
) -> tuple[tuple[int, ...], str, tuple[int, ...], float]:
    """Return predictions, digest of the last logits, tokens, and the milliseconds of the resume to the stop behind the
    last layer and on to the end."""
    last = layers - 1
    _stop_at(session, wanted.steering_layer, prompt, new, *([last] if last > wanted.steering_layer else []))
    session.edit(dj.scale(wanted.modification_factor))
    if wanted.steering_layer == last:
        predicted, resumed_ms = predicted_by(session.stop), 0.0
    else:
        stop, resumed_ms = timed(session.resume)
        predicted = predicted_by(paused(stop))
    end, end_ms = timed(session.resume)
    done = finished(end)
    return predicted, digest_of(done), done.tokens, resumed_ms + end_ms


def _unedited(session: RemoteSession, wanted: Steering, prompt: list[int], new: int) -> float:
    _stop_at(session, wanted.steering_layer, prompt, new)
    return timed(session.resume)[1]


def _stop_at(session: RemoteSession, layer: int, prompt: list[int], new: int, *more: int) -> None:
    session.clear()
    for place in (layer, *more):
        session.breakpoint(f"resid_post.{place}", when="step == 0")
    session.run(prompt, max_new_tokens=new, ignore_eos=True)
