"""The verdict on a flatline: windows of wall time against the bar, and what else a link that streams cannot do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.amounts import MIB
from djinn_jupyter.experiments.configuration.validation import PcieFlatline
from djinn_jupyter.experiments.course import Unmeasured
from djinn_jupyter.experiments.memory import Curve
from djinn_jupyter.experiments.validation import windows
from djinn_jupyter.experiments.validation.beside import HandStreamed
from djinn_jupyter.experiments.validation.windows import MovedBytes, TimeSpan, sustained, window_rates
from djinn_jupyter.wire.nouns import LayerCopy

OF_PLAIN = 0.7  # of the windows of manual offload, where they set the bar: the engine's passes go through a socket
FASTER = 1.05  # than the fastest manual copy: the tolerance for clocks; one left out is a hundred times faster
TOGETHER = 0.03  # of the time in which copying and computing could overlap; in turns it is none
CARRIED = (0.5, 1.5)  # of the counted bytes, by the driver's counter, which samples; a copy made twice is 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bandwidths that the windows are held against, in MiB a second."""

    required: float  # for a share of the windows
    fastest: float  # of all manual copies in the same run, also those while nothing was computed
    plain: tuple[float, ...]  # windows of manual offload, with copying and computing at once
    measured_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The samples."""

    copies: tuple[LayerCopy, ...]
    spans: tuple[TimeSpan, ...]  # of the runs
    passes: int
    elapsed: float  # seconds, with the time between runs
    computing: float  # seconds of passes in which no copy was waited for
    streamed: int  # bytes that each pass has to move
    curve: Curve  # of the memory
    runs: tuple[tuple[int, ...], ...]  # the new tokens of each run of the one prompt
    rates: tuple[float, ...]  # tokens a second of each run

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    @property
    def moved(self) -> int:
        return sum(copy.bytes_moved for copy in self.copies)

    def together(self, *, waits: bool) -> float:
        """Return the share of the time in which copying and computing could overlap and did; 0 where they take turns.
        With `waits` a copy also counts where computing did not wait for it: one by another thread may be over before
        the next layer has begun."""
        copying = sum(copy.seconds for copy in self.copies)
        possible = min(copying, self.computing)
        beside = sum(max(copy.overlapped_seconds, _not_waited_for(copy) if waits else 0.0) for copy in self.copies)
        return beside / possible if possible > 0 else 0.0


def _not_waited_for(copy: LayerCopy) -> float:
    return 0.0 if copy.stalled_seconds is None else max(0.0, copy.seconds - copy.stalled_seconds)


def bar_of(wanted: PcieFlatline, hand: HandStreamed, *, gpu: bool) -> Bar:
    """Return the configured bar on a GPU. Elsewhere copying and computing share a bus: the bar is what plain PyTorch
    attains with both at once."""
    plain = [rate / MIB for rate in window_rates(hand.copies, hand.spans)]
    here = OF_PLAIN * sustained(plain, wanted.sustained_ratio) if plain else 0.0
    required = wanted.min_sustained_bandwidth_mb_per_s if gpu else here
    return Bar(required=required, fastest=hand.fastest() / MIB, plain=tuple(plain), measured_here=not gpu)


def rates_of(copies: Iterable[LayerCopy], spans: Sequence[TimeSpan]) -> list[float]:
    """Return MiB a second of each window."""
    moved = [MovedBytes(begun=copy.begun, seconds=copy.seconds, nbytes=copy.bytes_moved) for copy in copies]
    return [rate / MIB for rate in window_rates(moved, spans)]


def judge(
    wanted: PcieFlatline, bar: Bar, flow: Flow, *, limit_gb: float | None, carried: float | None = None
) -> dict[str, Any]:
    """Return the verdict, and the figures. `carried`: the bytes that the driver counted on the link."""
    rates = rates_of(flow.copies, flow.spans)
    copying = sum(copy.seconds for copy in flow.copies)
    above = sum(rate >= bar.required for rate in rates) / len(rates) if rates else 0.0
    peak = max(flow.curve.gigabytes(), default=None)
    mean = flow.moved / copying / MIB if copying else 0.0
    over = None if carried is None or not flow.moved else carried / flow.moved
    together = flow.together(waits=bar.measured_here)
    failures = {
        "No layer was copied: nothing streams.": bool(flow.copies),
        "Too few windows of wall time reached the required bandwidth.": above >= wanted.sustained_ratio,
        "Passes were sampled for less than sample_duration_seconds.": flow.seconds >= wanted.sample_duration_seconds,
        "Copying and computing took turns: the next layer did not come while one was computed.": together >= TOGETHER,
        "The passes moved other bytes than those that stream.": flow.moved == flow.passes * flow.streamed,
        "The link carried other bytes than the engine counted.": over is None or CARRIED[0] <= over <= CARRIED[1],
        "Runs of one prompt made different tokens: a layer was not copied.": len(set(flow.runs)) == 1,
        "Copies were faster than the fastest by hand: something was not copied.": mean <= FASTER * bar.fastest,
        "The device held more than its limit.": peak is None or limit_gb is None or peak <= limit_gb,
    }
    return {
        "passed": all(failures.values()),
        "failures": [sentence for sentence, held in failures.items() if not held],
        "bandwidth_mbps": statistics.median(rates) if rates else None,
        "required_mbps": bar.required,
        "required_is": f"{OF_PLAIN} of what manual offload of the same layers sustained with copying and computing at "
        "once, in turns with ours in this run, on a machine without a GPU"
        if bar.measured_here
        else "pcie_flatline.min_sustained_bandwidth_mb_per_s",
        "fastest_by_hand_mbps": bar.fastest,
        "metrics": {
            "iterations": flow.passes,
            "elapsed_seconds": flow.seconds,
            "estimated_bytes_loaded": flow.moved,
            "estimated_mbps": flow.moved / flow.seconds / MIB if flow.seconds else 0.0,
            "gpu_mem_peak": Unmeasured(reason="nothing was sampled") if peak is None else peak,
        },
        "window_seconds": windows.SECONDS,
        "samples_mbps": rates,
        "samples_by_hand_mbps": list(bar.plain),
        "samples_above_ratio": above,
        "bytes_that_stream": flow.streamed,
        "overlap_ratio": together,
        "carried_over_counted": Unmeasured(reason="no counter of the link") if over is None else over,
        "copy_mean_mbps": mean,
        "stalled_seconds": sum(copy.stalled_seconds or 0.0 for copy in flow.copies),
        "copies": [
            [c.layer, c.bytes_moved, c.seconds, c.begun, c.stalled_seconds, c.overlapped_seconds] for c in flow.copies
        ],
    }
