"""The flatline of the link: one sample for each copy of a layer, while passes run one after the other."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.amounts import GIB, MIB, spell_bytes
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.configuration.validation import PcieFlatline, ValidationFile
from djinn_jupyter.experiments.course import Course, Unmeasured, now, timed
from djinn_jupyter.experiments.memory import Curve, sampled
from djinn_jupyter.experiments.nvml import LinkCounter, counted
from djinn_jupyter.experiments.serving import engine_for
from djinn_jupyter.experiments.validation.beside import NEW, PROMPT, Streamed, beside, manual
from djinn_jupyter.experiments.validation.opening import card_for, imposed, options_of, within
from djinn_jupyter.experiments.validation.ring import arrived
from djinn_jupyter.wire.nouns import LayerCopy

FILE = "pcie_flatline_results.json"
FIELDS = """passed bandwidth_mbps required_mbps metrics gpu_info samples_mbps samples_above_ratio timestamp""".split()
MARGIN = 0.5  # of the sustained manual copies, where they set the bar: a core shared with other processes halves a copy
FASTER = 1.05  # than the fastest manual copy: the tolerance for clocks; one left out is a hundred times faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bandwidths that the copies are held against, in MiB a second."""

    required: float  # for a share of the copies
    fastest: float  # of all manual copies in the same run, also those while nothing was computed
    measured_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The samples."""

    copies: tuple[LayerCopy, ...]
    passes: int
    seconds: float  # of all
    streamed: int  # bytes that each pass has to move
    curve: Curve  # of the memory
    runs: tuple[tuple[int, ...], ...]  # the new tokens of each run of the one prompt
    rates: tuple[float, ...]  # tokens a second of each run


def run(course: Course, file: ValidationFile, wanted: PcieFlatline) -> dict[str, Any]:
    """Run the test; return the fields of the result file."""
    assert file.ring_gb is not None
    by_hand = manual(course, wanted.model_id, wanted.dtype, wanted.sample_duration_seconds / 2)
    card = card_for(file.ring_gb, imposed(file, file.limit_gb), by_hand.weights)
    options = {"dtype": wanted.dtype, **card.options(), **options_of(file)}
    with engine_for(course, wanted.model_id, **options) as engine:
        description, reading = engine.description, engine.statistics()
        gpu = description.device.startswith("cuda")
        with counted(description.device) as counter:
            flow = _flow(course, engine, wanted, file.server.timeout_seconds)
    sides = beside(course, wanted, card.allowed, by_hand, flow.rates, flow.runs[-1]) if wanted.baselines else None
    bar = _bar(wanted, by_hand, gpu=gpu)
    fields = judge(wanted, bar, flow, limit_gb=file.limit_gb)
    course.tell(
        f"flatline: {spell_bytes(fields['bandwidth_mbps'] * MIB)}/s, required {spell_bytes(bar.required * MIB)}/s, "
        f"{100 * fields['samples_above_ratio']:.1f} % of {len(flow.copies)} copies above"
    )
    return {
        "test": "pcie_flatline",
        "model": course.setup.named(wanted.model_id),
        **fields,
        "capacity_gb": card.allowed / GIB,
        "capacity_imposed": True,
        "ring_shrunk_to_stream": card.shrunk,
        "gpu_info": _gpu(description.device, reading.device_bytes_total, counter, flow),
        "streaming_baselines": sides or Unmeasured(reason="pcie_flatline.baselines is false"),
        "timestamp": now(),
    }


def judge(wanted: PcieFlatline, bar: Bar, flow: Flow, *, limit_gb: float | None) -> dict[str, Any]:
    """Return the verdict on the copies, and their figures."""
    rates = _rates(flow.copies)
    copying = sum(copy.seconds for copy in flow.copies)
    moved = sum(copy.bytes_moved for copy in flow.copies)
    above = sum(rate >= bar.required for rate in rates) / len(rates) if rates else 0.0
    peak = max(flow.curve.gigabytes(), default=None)
    mean = moved / copying / MIB if copying else 0.0
    failures = {
        "No layer was copied: nothing streams.": bool(rates),
        "Too few copies reached the required bandwidth.": above >= wanted.sustained_ratio,
        "Copies were sampled for less than sample_duration_seconds.": flow.seconds >= wanted.sample_duration_seconds,
        "The passes moved other bytes than those that stream.": moved == flow.passes * flow.streamed,
        "Runs of one prompt made different tokens: a layer was not copied.": len(set(flow.runs)) == 1,
        "Copies were faster than the fastest by hand: something was not copied.": mean <= FASTER * bar.fastest,
        "The device held more than its limit.": peak is None or limit_gb is None or peak <= limit_gb,
    }
    return {
        "passed": all(failures.values()),
        "failures": [sentence for sentence, held in failures.items() if not held],
        "bandwidth_mbps": statistics.median(rates) if rates else None,
        "required_mbps": bar.required,
        "required_is": f"{MARGIN} of what manual copies of the same layers sustained on this machine, which has no GPU"
        if bar.measured_here
        else "pcie_flatline.min_sustained_bandwidth_mb_per_s",
        "fastest_by_hand_mbps": bar.fastest,
        "metrics": {
            "iterations": flow.passes,
            "elapsed_seconds": flow.seconds,
            "estimated_bytes_loaded": moved,
            "estimated_mbps": moved / flow.seconds / MIB,
            "gpu_mem_peak": Unmeasured(reason="nothing was sampled") if peak is None else peak,
        },
        "mean_mbps": mean,
        "bytes_that_stream": flow.streamed,
        "stalled_seconds": sum(copy.stalled_seconds or 0.0 for copy in flow.copies),
        "samples_mbps": rates,
        "samples_above_ratio": above,
        "samples": [[c.layer, c.bytes_moved, c.seconds, c.begun, c.stalled_seconds] for c in flow.copies],
    }


def sustained(rates: Sequence[float], ratio: float) -> float:
    """Return the bandwidth that the share `ratio` of the copies reached."""
    count = max(1, math.ceil(ratio * len(rates) - 1e-9))
    return sorted(rates, reverse=True)[count - 1]


def _flow(course: Course, engine: RemoteEngine, wanted: PcieFlatline, timeout: float) -> Flow:
    weights = engine.wake().weights
    if weights.residency != "streamed":
        raise UsageError("The whole model stays on the device, so no layer is copied; make the ring smaller.")
    session, prompt = engine.session("flatline", fresh=True), list(range(1, PROMPT + 1))
    session.run(prompt, max_new_tokens=2, ignore_eos=True)  # the ring learns the order of the layers
    copies: list[LayerCopy] = []
    last = max((copy.number for copy in arrived(engine, 0, timeout)), default=0)
    passes, rates, runs, begun = 0, [], [], time.monotonic()
    with sampled(engine) as curve:
        while time.monotonic() - begun < wanted.sample_duration_seconds:
            course.check_time()
            done, milliseconds = timed(
                lambda: within(timeout, lambda: session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
            )
            passes += done.passes
            runs.append(tuple(done.tokens))
            rates.append(1000 * NEW / milliseconds)
            copies += engine.copies(last)
            last = copies[-1].number if copies else last
            named = {"test": "pcie_flatline", "model": course.setup.named(wanted.model_id)}
            course.write_partial(FILE, FIELDS, {**named, "samples_mbps": _rates(copies)})
            course.tell_more(f"pass {passes}: {len(copies)} copies")
        seconds = time.monotonic() - begun
        copies += arrived(engine, last, timeout)
    return Flow(
        copies=tuple(copies),
        passes=passes,
        seconds=seconds,
        streamed=weights.bytes_streamed_per_pass,
        curve=curve,
        runs=tuple(runs),
        rates=tuple(rates),
    )


def _rates(copies: Sequence[LayerCopy]) -> list[float]:
    """Return each copy's MiB a second."""
    return [copy.bytes_moved / copy.seconds / MIB for copy in copies]


def _bar(wanted: PcieFlatline, by_hand: Streamed, *, gpu: bool) -> Bar:
    rates, alone = (
        [nbytes / seconds / MIB for nbytes, seconds in copies] for copies in (by_hand.copies, by_hand.alone)
    )
    here = MARGIN * sustained(rates, wanted.sustained_ratio)
    required = wanted.min_sustained_bandwidth_mb_per_s if gpu else here
    return Bar(required=required, fastest=max(*rates, *alone), measured_here=not gpu)


def _gpu(device: str, total: int | None, counter: LinkCounter, flow: Flow) -> dict[str, Any]:
    moved = sum(copy.bytes_moved for copy in flow.copies)
    absent = Unmeasured(reason=counter.reason)
    return {
        "device": device,
        "memory_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "nvml_pcie_received_mbps": absent if counter.mean is None else counter.mean / MIB,
        "nvml_over_counted": absent if counter.mean is None else counter.mean * flow.seconds / moved,
    }
