"""The flatline of the link: the bytes of each window of wall time, while passes run one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from djinn_evaluation.afar import SIDES_APART, sentence
from djinn_evaluation.baselines.asking import baseline
from djinn_evaluation.configuration.validation import PcieFlatline, ValidationFile
from djinn_evaluation.cores import cores_first, seconds_without_core
from djinn_evaluation.course import Course, Unmeasured, now, timed
from djinn_evaluation.memory import sampled
from djinn_evaluation.nvml import LinkCounter, counted
from djinn_evaluation.serving import engine_for, pids_of, reaches_over_a_line
from djinn_evaluation.streaming.subjects import DrawnShape, subject
from djinn_evaluation.validation.beside import NEW, PROMPT, HandStreamed, added, beside, by_hand
from djinn_evaluation.validation.flatline_verdict import Bar, Flow, bar_of, judge, rates_of
from djinn_evaluation.validation.opening import card_for, imposed, options_of, within
from djinn_evaluation.validation.ring import arrived
from djinn_evaluation.validation.windows import TimeSpan
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB, MIB, spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy

FILE = "pcie_flatline_results.json"
FIELDS = """passed bandwidth_mbps required_mbps metrics gpu_info samples_mbps samples_above_ratio timestamp""".split()
ROUNDS = 15  # at least, of each side in turns: the interval of so many leaves out the three slowest and fastest
ROUNDS_ALONE = 3  # at least, of manual offload where it sets no bar


@dataclass(slots=True)
class StreamedRuns:
    """Runs of one prompt: copies of layers, and of each run its span, new tokens, and tokens a second."""

    copies: list[LayerCopy] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    passes: int = 0
    without_core: float | None = 0.0  # seconds, of the engine's threads

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)


def run(course: Course, file: ValidationFile, wanted: PcieFlatline) -> dict[str, Any]:
    """Run the test; return the fields of the result file. Windows of wall time are of one clock, and their bar is of
    one machine: of an engine that is reached over a line they are not measured."""
    if reaches_over_a_line(course):
        course.tell(f"flatline: {SIDES_APART.reason}")
        unseen = {
            **dict.fromkeys(FIELDS, SIDES_APART),
            "failures": [],
            "undecided": [sentence(SIDES_APART)],
            "timestamp": now(),
        }
        return {"test": "pcie_flatline", "model": course.setup.named(wanted.model_id), **unseen}
    with _model(course, wanted) as (name, drawn):
        return {"test": "pcie_flatline", "model": name, **_measured(course, file, drawn, name)}


@contextmanager
def _model(course: Course, wanted: PcieFlatline) -> Iterator[tuple[str, PcieFlatline]]:
    """Yield the model's name in the result files, and the test on it; one with random weights lies in a folder that is
    deleted after the block."""
    drawn = wanted.random_weights
    if drawn is None:
        yield course.setup.named(wanted.model_id), wanted
        return
    shape = DrawnShape(
        architecture=wanted.model_id, divide_widths=drawn.divide_widths, layers=drawn.layers, dtype=wanted.dtype
    )
    with baseline("by_hand") as hand, subject(course, shape, hand) as found:
        yield found.name, msgspec.structs.replace(wanted, model_id=found.source)


def _measured(course: Course, file: ValidationFile, wanted: PcieFlatline, name: str) -> dict[str, Any]:
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
                flow = _flow(course, engine, wanted, file.server.timeout_seconds, None if gpu else hand, name)
    sides = beside(course, wanted, card.allowed, hand, flow.rates, flow.runs[-1]) if wanted.baselines else None
    bar = bar_of(wanted, hand, gpu=gpu)
    carried = None if counter.mean is None else counter.mean * flow.elapsed
    fields = judge(wanted, bar, flow, limit_gb=file.limit_gb, carried=carried)
    course.tell(_sentence(fields, bar))
    course.tell(_verdict(fields["windows"]))
    return {
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


def _verdict(found: Mapping[str, Any]) -> str:
    return f"flatline: windows {found['verdict']}. {found.get('reason', '')}".rstrip()


def _stream_by_hand(course: Course, hand: HandStreamed, seconds: float) -> None:
    hand.stream(None)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds or len(hand.spans) < ROUNDS_ALONE:
        course.check_time()
        hand.round()


def _flow(
    course: Course, engine: RemoteEngine, wanted: PcieFlatline, timeout: float, hand: HandStreamed | None, name: str
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
    least = 1 if hand is None else ROUNDS
    runs, begun, before = StreamedRuns(), time.monotonic(), engine.wake().weights
    sides = [*pids_of(engine), *([] if hand is None else [hand.pid])]
    with cores_first(sides, asked=wanted.cores_first) as first, sampled(engine) as curve:
        while runs.seconds < wanted.sample_duration_seconds or len(runs.spans) < least:
            course.check_time()
            last = _run(engine, session, runs, last, timeout)
            if hand is not None:
                hand.round()
            named = {"test": "pcie_flatline", "model": name}
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
        without_core=runs.without_core,
        cores_first=first,
    )


def _run(engine: RemoteEngine, session: RemoteSession, runs: StreamedRuns, last: int, timeout: float) -> int:
    """Run the prompt once; return the number of its last copy."""
    waited, prompt, begun = _without_core(engine), list(range(1, PROMPT + 1)), time.time()
    done, milliseconds = timed(
        lambda: within(timeout, lambda: session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
    )
    runs.spans.append(TimeSpan(begun=begun, ended=begun + milliseconds / 1000))
    runs.without_core = added(runs.without_core, waited, _without_core(engine))
    runs.passes += done.passes
    runs.tokens.append(tuple(done.tokens))
    runs.rates.append(1000 * NEW / milliseconds)
    copies: Sequence[LayerCopy] = engine.copies(last)
    runs.copies += copies
    return copies[-1].number if copies else last


def _without_core(engine: RemoteEngine) -> float | None:
    return None if engine.entry is None else seconds_without_core([engine.entry.pid])


def _gpu(device: str, total: int | None, counter: LinkCounter, fields: dict[str, Any]) -> dict[str, Any]:
    absent = Unmeasured(reason=counter.reason)
    return {
        "device": device,
        "memory_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "nvml_pcie_received_mbps": absent if counter.mean is None else counter.mean / MIB,
        "nvml_over_counted": absent if counter.mean is None else fields["carried_over_counted"],
    }
