"""The flatline of the link: the bytes of each window of wall time, while passes run one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from djinn_jupyter.amounts import GIB, MIB, spell_bytes
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.configuration.validation import PcieFlatline, ValidationFile
from djinn_jupyter.experiments.course import Course, Unmeasured, now, timed
from djinn_jupyter.experiments.memory import sampled
from djinn_jupyter.experiments.nvml import LinkCounter, counted
from djinn_jupyter.experiments.serving import engine_for
from djinn_jupyter.experiments.validation.beside import NEW, PROMPT, HandStreamed, beside, by_hand
from djinn_jupyter.experiments.validation.flatline_verdict import Bar, Flow, bar_of, judge, rates_of
from djinn_jupyter.experiments.validation.opening import card_for, imposed, options_of, within
from djinn_jupyter.experiments.validation.ring import arrived
from djinn_jupyter.experiments.validation.windows import TimeSpan
from djinn_jupyter.wire.nouns import LayerCopy

FILE = "pcie_flatline_results.json"
FIELDS = """passed bandwidth_mbps required_mbps metrics gpu_info samples_mbps samples_above_ratio timestamp""".split()
ROUNDS = 3  # of manual offload, at least


@dataclass(slots=True)
class StreamedRuns:
    """Runs of one prompt: copies of layers, and of each run its span, new tokens, and tokens a second."""

    copies: list[LayerCopy] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    passes: int = 0

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)


def run(course: Course, file: ValidationFile, wanted: PcieFlatline) -> dict[str, Any]:
    """Run the test; return the fields of the result file."""
    assert file.ring_gb is not None
    with ExitStack() as manual:
        hand = manual.enter_context(by_hand(course, wanted))
        gpu = hand.device.startswith("cuda")
        card = card_for(file.ring_gb, imposed(file, file.limit_gb), hand.weights)
        if gpu:  # the bar is the configured one, and the card is free for the engine afterwards
            _stream_by_hand(course, hand, wanted.sample_duration_seconds / 2)
            manual.close()
        options = {"dtype": wanted.dtype, **card.options(), **options_of(course, file)}
        with engine_for(course, wanted.model_id, **options) as engine:
            description, reading = engine.description, engine.statistics()
            with counted(description.device) as counter:
                flow = _flow(course, engine, wanted, file.server.timeout_seconds, None if gpu else hand)
    sides = beside(course, wanted, card.allowed, hand, flow.rates, flow.runs[-1]) if wanted.baselines else None
    bar = bar_of(wanted, hand, gpu=gpu)
    carried = None if counter.mean is None else counter.mean * flow.elapsed
    fields = judge(wanted, bar, flow, limit_gb=file.limit_gb, carried=carried)
    course.tell(_sentence(fields, bar))
    return {
        "test": "pcie_flatline",
        "model": course.setup.named(wanted.model_id),
        **fields,
        "capacity_gb": card.allowed / GIB,
        "capacity_imposed": True,
        "ring_shrunk_to_stream": card.shrunk,
        "gpu_info": _gpu(description.device, reading.device_bytes_total, counter, fields),
        "streaming_baselines": sides or Unmeasured(reason="pcie_flatline.baselines is false"),
        "timestamp": now(),
    }


def _sentence(fields: dict[str, Any], bar: Bar) -> str:
    reached = spell_bytes((fields["bandwidth_mbps"] or 0.0) * MIB)
    return (
        f"flatline: {reached}/s, required {spell_bytes(bar.required * MIB)}/s, "
        f"{100 * fields['samples_above_ratio']:.1f} % of {len(fields['samples_mbps'])} windows above"
    )


def _stream_by_hand(course: Course, hand: HandStreamed, seconds: float) -> None:
    hand.stream(None)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds or len(hand.spans) < ROUNDS:
        course.check_time()
        hand.round()


def _flow(
    course: Course, engine: RemoteEngine, wanted: PcieFlatline, timeout: float, hand: HandStreamed | None
) -> Flow:
    """Run the prompt again and again; in turns with `hand`, which streams the same layers, so that whatever else the
    machine does slows both."""
    weights = engine.wake().weights
    if weights.residency != "streamed":
        raise UsageError("The whole model stays on the device, so no layer is copied; make the ring smaller.")
    session = engine.session("flatline", fresh=True)
    session.run(list(range(1, PROMPT + 1)), max_new_tokens=2, ignore_eos=True)  # the ring learns the order
    there = arrived(engine, 0, timeout)
    last = max((copy.number for copy in there), default=0)
    if hand is not None:
        hand.stream(sorted({copy.layer for copy in there}))
    runs, begun, before = StreamedRuns(), time.monotonic(), engine.wake().weights
    with sampled(engine) as curve:
        while runs.seconds < wanted.sample_duration_seconds:
            course.check_time()
            last = _run(engine, session, runs, last, timeout)
            if hand is not None:
                hand.round()
            named = {"test": "pcie_flatline", "model": course.setup.named(wanted.model_id)}
            course.write_partial(FILE, FIELDS, {**named, "samples_mbps": rates_of(runs.copies, runs.spans)})
            course.tell_more(f"pass {runs.passes}: {len(runs.copies)} copies")
        runs.copies += arrived(engine, last, timeout)
    after = engine.wake().weights
    waited = after.waited_seconds - before.waited_seconds
    return Flow(
        copies=tuple(runs.copies),
        spans=tuple(runs.spans),
        passes=runs.passes,
        elapsed=time.monotonic() - begun,
        computing=after.pass_seconds - before.pass_seconds - waited,
        streamed=weights.bytes_streamed_per_pass,
        curve=curve,
        runs=tuple(runs.tokens),
        rates=tuple(runs.rates),
    )


def _run(engine: RemoteEngine, session: RemoteSession, runs: StreamedRuns, last: int, timeout: float) -> int:
    """Run the prompt once; return the number of its last copy."""
    prompt, begun = list(range(1, PROMPT + 1)), time.time()
    done, milliseconds = timed(
        lambda: within(timeout, lambda: session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
    )
    runs.spans.append(TimeSpan(begun=begun, ended=begun + milliseconds / 1000))
    runs.passes += done.passes
    runs.tokens.append(tuple(done.tokens))
    runs.rates.append(1000 * NEW / milliseconds)
    copies: Sequence[LayerCopy] = engine.copies(last)
    runs.copies += copies
    return copies[-1].number if copies else last


def _gpu(device: str, total: int | None, counter: LinkCounter, fields: dict[str, Any]) -> dict[str, Any]:
    absent = Unmeasured(reason=counter.reason)
    return {
        "device": device,
        "memory_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "nvml_pcie_received_mbps": absent if counter.mean is None else counter.mean / MIB,
        "nvml_over_counted": absent if counter.mean is None else fields["carried_over_counted"],
    }
