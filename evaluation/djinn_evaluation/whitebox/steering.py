"""An edit at a stop, run twice: it must change the output, and equally both times. And the time of a restore with an
edit and without: until the stopped pass goes on, not until its generation has ended."""

from __future__ import annotations

import statistics
from typing import Any

import djinn_jupyter as dj
from djinn_evaluation.configuration.whitebox import Steering
from djinn_evaluation.course import Course, timed
from djinn_evaluation.outcomes import digest_of, finished, paused
from djinn_evaluation.whitebox.trials import Reference, predicted_by
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession

PAIRS = 8  # of restores without the edit and with it, in turns


def run_steering(
    course: Course, engine: RemoteEngine, wanted: Steering, prompt: list[int], new: int, reference: Reference
) -> dict[str, Any]:
    """Return the fields of `activation_steering`. `token_diff_percent`: prompt positions whose most likely token
    differs."""
    course.check_time()
    session = engine.session("steering", fresh=True)
    first = _steered(session, wanted, prompt, new, engine.description.layers)
    second = _steered(session, wanted, prompt, new, engine.description.layers)
    pairs = [[_restored(session, wanted, prompt, edited) for edited in (False, True)] for _ in range(PAIRS)]
    session.close()
    predicted, digest, tokens = first
    repeats = second == first
    differing = sum(a != b for a, b in zip(predicted, reference.predicted, strict=True))
    changed = digest != reference.digest or tokens != reference.tokens
    course.tell(f"steering at layer {wanted.steering_layer}: {differing} of {len(predicted)} positions differ")
    return {
        "layer": wanted.steering_layer,
        "scale": wanted.modification_factor,
        "output_changed": changed,
        "baseline_restore_time_ms": statistics.median(plain for plain, _ in pairs),
        "steered_restore_time_ms": statistics.median(steered for _, steered in pairs),
        "restore_time_pairs_ms": pairs,
        "token_diff_percent": 100 * differing / len(predicted),
        "steering_successful": changed and repeats,
        "repeats_bitwise": repeats,
    }


def _steered(
    session: RemoteSession, wanted: Steering, prompt: list[int], new: int, layers: int
) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    """Return predictions, digest of the last logits, and tokens of a run that stops behind the last layer too."""
    last = layers - 1
    _stop_at(session, wanted.steering_layer, prompt, new, *([last] if last > wanted.steering_layer else []))
    session.edit(dj.scale(wanted.modification_factor))
    at_the_last = session.stop if wanted.steering_layer == last else session.resume()
    predicted = predicted_by(paused(at_the_last))
    done = finished(session.resume())
    return predicted, digest_of(done), done.tokens


def _restored(session: RemoteSession, wanted: Steering, prompt: list[int], edited: bool) -> float:
    """Return the milliseconds from the request to go on, of a stop whose bytes are on the host, until they are back and
    the first layer behind the stop has run."""
    _stop_at(session, wanted.steering_layer, prompt, 2)
    if edited:
        session.edit(dj.scale(wanted.modification_factor))
    session.swap_out()
    stop, milliseconds = timed(session.step)
    paused(stop)
    return milliseconds


def _stop_at(session: RemoteSession, layer: int, prompt: list[int], new: int, *more: int) -> None:
    session.clear()
    for place in (layer, *more):
        session.breakpoint(f"resid_post.{place}", when="step == 0")
    session.run(prompt, max_new_tokens=new, ignore_eos=True)
