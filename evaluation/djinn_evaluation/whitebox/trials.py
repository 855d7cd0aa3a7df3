"""Every layer of the file in every trial: stop, inspect, resume unedited, and compare with a run that never stopped;
the overhead of a stop, steering, a request meanwhile, and the bytes on the wire.

The reference is plain Hugging Face in a process of its own: `generate` for the continuation and its last logits, one
`forward` for the most likely token after each position of the prompt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import digest
from djinn_evaluation.configuration.sections import Concurrent, Inference, Steering, Whitebox
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.intervals import MedianInterval
from djinn_evaluation.link import Absence, TimedCopy, absence
from djinn_evaluation.machine import core_wait
from djinn_evaluation.memory import pages_in_use
from djinn_evaluation.serving import PROCESS_UNSEEN, digest_of, finished, is_afar, paused, pids_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused, Stop
from djinn_jupyter.units import MIB

RESULTS = "djinn_breakpoint_results.json"
FIELDS = """model device token_accuracy os_overhead activation_steering concurrent_demo memory_breakdown
    baseline_prompt wire_bytes_stop wire_bytes_resume kv_bytes_on_wire wire_repetitions link
    slow_line""".split()


NOT_COPIED = Unmeasured(reason="all bytes had a copy already, so that the mover copied nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Plain Hugging Face's likeliest tokens and new ones, and the digests of the first and last logits."""

    predicted: tuple[int, ...]
    tokens: tuple[int, ...]
    first: str
    digest: str
    captured: dict[int, tuple[list[int], str]] = field(default_factory=dict)  # by layer, shape and digest of its output

    def equals(self, done: Finished) -> bool:
        """True where a run of the same prompt ended with the same tokens and the same bits."""
        return (done.tokens, digest_of(done)) == (self.tokens, self.digest)


Entry = dict[str, Any]  # of one trial at one layer, as the result file has it


def ran_its_layers(entry: Entry, layers: int) -> bool:
    """True where the layers up to the stop ran before it, and only the others after it."""
    stopped = entry["layer"] + 1
    return (entry["layers_run_before_stop"], entry["layers_run_after_resume"]) == (stopped, layers - stopped)


def run_trials(
    course: Course, engine: RemoteEngine, file: Whitebox, prompt: list[int], reference: Reference
) -> tuple[list[Entry], list[TimedCopy]]:
    """Return the trials, and the copies of their swaps."""
    session = engine.session("whitebox", fresh=True)
    run_prompt(session, prompt, file.experiment.inference.continuation_tokens)  # the first run is slow and not counted
    entries: list[Entry] = []
    copies: list[TimedCopy] = []
    for trial in range(1, file.experiment.num_trials + 1):
        for layer in file.experiment.breakpoints.layers:
            course.check_time()
            entry, away = _trial(engine, session, file.experiment.inference, prompt, reference, trial, layer)
            entries.append(entry)
            copies += away.copies()
            course.write_partial(RESULTS, FIELDS, {"baseline_prompt": prompt, "token_accuracy": summary(entries)})
            course.tell(
                f"trial {trial}, layer {layer}: Token Accuracy: {entry['token_accuracy']:.2f}%, "
                f"Checkpoint: {entry['checkpoint_time_ms']:.2f} ms, Overhead: {entry['os_overhead_percent']:.2f}%, "
                f"bitwise equal: {entry['bitwise_equal']}"
            )
    session.close()
    return entries, copies


def summary(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the fields of `token_accuracy` in the result file."""
    names = ("token_accuracy", "latency_ms", "os_overhead_percent")
    accuracy, latency, overhead = ([entry[name] for entry in entries] for name in names)
    return {
        "entries": list(entries),
        "token_accuracy_mean": statistics.fmean(accuracy),
        "token_accuracy_std": statistics.pstdev(accuracy),
        "latency_mean_ms": statistics.fmean(latency),
        "latency_std_ms": statistics.pstdev(latency),
        "os_overhead_mean_percent": statistics.fmean(overhead),
        "os_overhead_max_percent": max(overhead),
    }


def _copied(milliseconds: float | None) -> float | Unmeasured:
    return NOT_COPIED if milliseconds is None else milliseconds


def captured(hidden: Any) -> tuple[list[int], str]:
    """Return the shape [1, positions, features] of a hidden state, and the digest of its bits as fp32."""
    return [1, *hidden.shape], digest(hidden.astype("float32"))


def predicted_by(stop: Paused) -> tuple[int, ...]:
    """Return the most likely token after each position of the pass, at a stop behind the last layer."""
    return tuple(row.top[0].token for row in stop.lens(1, positions=list(stop.positions)).rows)


def _trial(
    engine: RemoteEngine,
    session: RemoteSession,
    wanted: Inference,
    prompt: list[int],
    reference: Reference,
    trial: int,
    layer: int,
) -> tuple[Entry, Absence]:
    new, layers = wanted.continuation_tokens, engine.description.layers
    session.clear()
    _, uninterrupted_ms = timed(
        lambda: run_prompt(session, prompt, new)
    )  # right before its pair, so that both run under the same load
    stop, hidden, done, whole_ms = stopped_and_resumed(session, prompt, new, layer)
    resident, away, predicted, again, in_decode = _left_and_compared(engine, session, prompt, new, layer)
    prefilled = _prefilled(session, prompt, layer)
    compared = wanted.compared
    right = _agreeing(predicted[-compared:], reference.predicted[-compared:])
    right += _agreeing(again.tokens, reference.tokens)
    entry = {
        "trial": trial,
        "layer": layer,
        "token_accuracy": 100 * right / (compared + new),
        "latency_ms": whole_ms,  # of the whole run with its stop and resume
        "uninterrupted_ms": uninterrupted_ms,
        "checkpoint_time_ms": away.out_ms,  # until the bytes of the stopped session are on the host
        "checkpoint_dispatch_ms": away.dispatch_ms,  # the wait of another session's request meanwhile
        "still_dispatch_ms": away.still_ms,  # the wait of the same request right before, while nothing leaves
        "checkpoint_copy_ms": _copied(away.copy_ms),  # the mover's own
        "restore_time_ms": away.back_ms,  # until they are back and the stopped pass can go on
        "restore_copy_ms": _copied(away.back_copy_ms),  # the mover's own
        "checkpoint_size_mb": away.bytes_moved / MIB,
        "restore_size_mb": away.bytes_back / MIB,
        "os_overhead_percent": 100 * (whole_ms - uninterrupted_ms) / uninterrupted_ms,
        "layers_run_before_stop": stop.reply.layers_run,
        "layers_run_after_resume": done.layers_run - stop.reply.layers_run - (done.passes - 1) * layers,
        "bitwise_equal": reference.equals(done) and reference.equals(again) and prefilled == reference.first,
        "captured_shape": captured(hidden)[0],
        # the hidden state at the stop, and what a plain hook sees there
        "captured_bitwise_equal": captured(hidden) == reference.captured.get(layer),
        "stopped_in_decode": in_decode,  # the first new token's pass, where the session was swapped again
        "kv_bytes_resident_during_pause": resident,  # while it is stopped and nothing has been requested
        "kv_bytes_resident_after_swap_out": away.bytes_left,
    }
    return entry, away


def stopped_and_resumed(
    session: RemoteSession, prompt: list[int], new: int, layer: int
) -> tuple[Paused, Any, Finished, float]:
    """Time the stop, one read of its hidden state, and the resume, and nothing else. Return the milliseconds last."""
    _arm(session, layer)
    begun = perf_counter()
    stop = paused(run_prompt(session, prompt, new))
    hidden: Any = stop.hidden  # inspecting is part of a stop
    done = finished(session.resume())
    milliseconds = 1000 * (perf_counter() - begun)
    done.fetch_logits()
    return stop, hidden, done, milliseconds


def _left_and_compared(
    engine: RemoteEngine, session: RemoteSession, prompt: list[int], new: int, layer: int
) -> tuple[int, Absence, tuple[int, ...], Finished, bool]:
    """Run once more and swap the session out and back at the stop. Return the bytes of its keys and values on the
    device before that (no other session has any), the swap, the predictions at every position, the end, and True where
    the run also stopped at the first new token: there it is swapped again, with newer bytes."""
    _arm(session, layer, engine.description.layers - 1)
    session.breakpoint(f"resid_post.{layer}", when="step == 1")
    stop = paused(run_prompt(session, prompt, new))
    resident, away = pages_in_use(engine.statistics()), absence(engine, session)
    if stop.layer < engine.description.layers:
        stop = paused(session.resume())
    predicted = predicted_by(stop)
    done = session.resume()
    in_decode = isinstance(done, Paused) and (done.step, done.layer) == (1, layer + 1)
    if isinstance(done, Paused):
        session.swap_out()
        session.swap_in()
        done = session.resume()
    ended = finished(done)
    ended.fetch_logits()
    return resident, away, predicted, ended, in_decode


def _prefilled(session: RemoteSession, prompt: list[int], layer: int) -> str:
    """Return the digest of the logits of the stopped and resumed pass itself: later logits may not show its faults."""
    _arm(session, layer)
    paused(run_prompt(session, prompt, 1))
    return digest_of(finished(session.resume()))


def _arm(session: RemoteSession, *layers: int) -> None:
    session.clear()
    for layer in sorted(set(layers)):
        session.breakpoint(f"resid_post.{layer}", when="step == 0")


def run_prompt(session: RemoteSession, prompt: list[int], new: int) -> Stop:
    """Run to the first breakpoint that is armed, else to the end."""
    return session.run(prompt, max_new_tokens=new, ignore_eos=True)


def _agreeing(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


def measure_overhead(course: Course, engine: RemoteEngine, file: Whitebox, prompt: list[int]) -> dict[str, Any]:
    """Return the fields of `os_overhead`: milliseconds of each pair, of the overheads in percent the median with its
    interval, and the share of the pairs' time for which the engine's threads had no core (None where the kernel does
    not count that). The stops go through the layers of the file in turns."""
    wanted, layers = file.experiment, file.experiment.breakpoints.layers
    session, new = engine.session("overhead", fresh=True), wanted.inference.continuation_tokens
    _pair(session, prompt, new, layers[0], first="plain")  # the first pair is slow and not counted
    pairs = []
    with core_wait(pids_of(engine)) as waited:
        for number in range(wanted.overhead_pairs):
            course.check_time()
            first = "stopped" if number % 2 else "plain"
            pairs.append(_pair(session, prompt, new, layers[number % len(layers)], first=first))
    session.close()
    found = MedianInterval.of([100 * (stopped - plain) / plain for plain, stopped in pairs])
    without_core = PROCESS_UNSEEN if is_afar(engine) else waited.share
    course.tell(f"Overhead: {found.median:.2f}% ({found.low:.2f} to {found.high:.2f}%, {found.count} pairs)")
    return {"pairs_ms": [list(pair) for pair in pairs], "percent": found.fields(), "without_core": without_core}


def _pair(session: RemoteSession, prompt: list[int], new: int, layer: int, *, first: str) -> tuple[float, float]:
    """Return the milliseconds without a stop and with one."""
    taken = {}
    for side in sorted(("plain", "stopped"), key=lambda side: side != first):
        if side == "stopped":
            taken[side] = stopped_and_resumed(session, prompt, new, layer)[-1]
        else:
            session.clear()
            taken[side] = timed(lambda: run_prompt(session, prompt, new))[1]
    return taken["plain"], taken["stopped"]


PAIRS = 8  # of restores without the edit and with it, in turns


def run_steering(
    course: Course, engine: RemoteEngine, wanted: Steering, prompt: list[int], new: int, reference: Reference
) -> dict[str, Any]:
    """Return `activation_steering`; `token_diff_percent`: positions whose most likely token differs."""
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
    """Return the milliseconds until a stop on the host is back and its next layer has run."""
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


def run_meanwhile(
    course: Course, engine: RemoteEngine, wanted: Concurrent, layer: int, prompt: list[int], new: int, ref: Reference
) -> dict[str, Any]:
    """Return request B's fields of `concurrent_demo`: its end within the pause, and the bits of both."""
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


def measure_wire(engine: RemoteEngine, layer: int, prompt: list[int], new: int) -> dict[str, int]:
    """Return the bytes of a stop and of a resume with their arrays; others count as keys and values."""
    session = engine.session("wire", fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    begun = engine.wire_bytes
    stop = paused(session.run(prompt, max_new_tokens=new, ignore_eos=True))
    hidden: Any = stop.hidden
    stopped = engine.wire_bytes
    logits = finished(session.resume()).fetch_logits()
    ended = engine.wire_bytes
    session.close()
    arrays = ended.arrays_sent + ended.arrays_received - begun.arrays_sent - begun.arrays_received
    return {
        "wire_bytes_stop": stopped.sent + stopped.received - begun.sent - begun.received,
        "wire_bytes_resume": ended.sent + ended.received - stopped.sent - stopped.received,
        "kv_bytes_on_wire": max(0, arrays - hidden.nbytes - logits.nbytes),  # a line may compress the two
    }
