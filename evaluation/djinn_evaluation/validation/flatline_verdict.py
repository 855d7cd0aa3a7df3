"""The verdict on a flatline: windows of wall time against the bar, and what else a link that streams cannot do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.configuration.validation import PcieFlatline
from djinn_evaluation.course import Unmeasured
from djinn_evaluation.intervals import CONFIDENCE, MedianInterval, ratios
from djinn_evaluation.link import FASTER, HAND_WAITED, at_most_by_hand
from djinn_evaluation.memory import Curve
from djinn_evaluation.validation import windows
from djinn_evaluation.validation.beside import HandStreamed
from djinn_evaluation.validation.windows import MovedBytes, TimeSpan, sustained, window_rates
from djinn_jupyter.units import MIB
from djinn_jupyter.wire.nouns import LayerCopy

OF_BOTH = 0.9  # of what plain PyTorch attains with both at once, as in `streaming`: least_of_both
HALF = 0.5  # between turns, in which nothing overlaps, and manual offload, which overlaps as the machine lets it
CARRIED = (0.5, 1.5)  # of the counted bytes, by the driver's counter, which samples; a copy made twice is 2
TURNS = "Copying and computing took turns: the next layer did not come while one was computed."
TOO_FEW = "Too few windows of wall time reached the required bandwidth."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bandwidths that the windows are held against, in MiB a second."""

    required: float  # for a share of the windows
    fastest: float  # of all manual copies in the same run, also those while nothing was computed
    plain: tuple[float, ...]  # windows of manual offload, with copying and computing at once
    rounds: tuple[float, ...]  # what a share of the windows of each of its rounds reached
    together: float  # its overlap
    without_core: float | None  # the share of its time for which its threads had no core
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
    without_core: float | None = 0.0  # seconds for which the engine's threads had no core
    cores_first: bool = False  # both sides had the cores before other programs

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    @property
    def moved(self) -> int:
        return sum(copy.bytes_moved for copy in self.copies)

    def together(self, *, waits: bool) -> float:
        """Return the share of the time in which copying and computing could overlap and did; 0 where they take turns.
        With `waits` all of a copy counts that computing did not wait for: one by another thread may be over before the
        next layer has begun."""
        possible = min(sum(copy.seconds for copy in self.copies), self.computing)
        beside = sum(_beside_computing(copy, waits=waits) for copy in self.copies)
        return beside / possible if possible > 0 else 0.0


def _beside_computing(copy: LayerCopy, *, waits: bool) -> float:
    """Return the seconds of a copy beside computing. A time in which it was waited for is none of them."""
    if copy.stalled_seconds is None:
        return copy.overlapped_seconds
    not_waited_for = max(0.0, copy.seconds - copy.stalled_seconds)
    return not_waited_for if waits else min(copy.overlapped_seconds, not_waited_for)


def bar_of(wanted: PcieFlatline, hand: HandStreamed, *, gpu: bool) -> Bar:
    """Return the configured bar on a GPU. Elsewhere copying and computing share a bus: the bar is what plain PyTorch
    attains with both at once."""
    plain = [rate / MIB for rate in window_rates(hand.copies, hand.spans)]
    here = OF_BOTH * sustained(plain, wanted.sustained_ratio) if plain else 0.0
    required = wanted.min_sustained_bandwidth_mb_per_s if gpu else here
    return Bar(
        required=required,
        fastest=hand.fastest() / MIB,
        plain=tuple(plain),
        rounds=tuple(sustained_in(hand.copies, hand.spans, wanted.sustained_ratio)),
        together=hand.together,
        without_core=_share(hand.without_core, hand.seconds),
        measured_here=not gpu,
    )


def sustained_in(copies: Sequence[MovedBytes], spans: Sequence[TimeSpan], ratio: float) -> list[float]:
    """Return the MiB a second that the share `ratio` of the windows of each span reached; 0 for one without windows."""
    return [sustained(rates, ratio) / MIB if (rates := window_rates(copies, [span])) else 0.0 for span in spans]


def _share(part: float | None, seconds: float) -> float | None:
    return None if part is None else part / seconds if seconds else 0.0


def rates_of(copies: Iterable[LayerCopy], spans: Sequence[TimeSpan]) -> list[float]:
    """Return MiB a second of each window."""
    return [rate / MIB for rate in window_rates(moved_by(copies), spans)]


def moved_by(copies: Iterable[LayerCopy]) -> list[MovedBytes]:
    return [MovedBytes(begun=copy.begun, seconds=copy.seconds, nbytes=copy.bytes_moved) for copy in copies]


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
    made = at_most_by_hand(mean, bar.fastest, without_core=bar.without_core)
    windows_of = _beside_plain(wanted, bar, flow) if bar.measured_here else _by_share(wanted, above)
    failures = {
        "No layer was copied: nothing streams.": bool(flow.copies),
        TOO_FEW: windows_of["verdict"] != "refuted",
        "Passes were sampled for less than sample_duration_seconds.": flow.seconds >= wanted.sample_duration_seconds,
        TURNS: together > HALF * bar.together,
        "The passes moved other bytes than those that stream.": flow.moved == flow.passes * flow.streamed,
        "The link carried other bytes than the engine counted.": over is None or CARRIED[0] <= over <= CARRIED[1],
        "Runs of one prompt made different tokens: a layer was not copied.": len(set(flow.runs)) == 1,
        FASTER: made != "refuted",
        "The device held more than its limit.": peak is None or limit_gb is None or peak <= limit_gb,
    }
    undecided = [windows_of["reason"]] if windows_of["verdict"] == "undecided" else []
    undecided += [HAND_WAITED] if made == "undecided" else []
    said = [sentence for sentence, held in failures.items() if not held]
    return {
        "passed": Unmeasured(reason=undecided[0]) if undecided and not said else not said,
        "failures": said,
        "undecided": undecided,
        "bandwidth_mbps": statistics.median(rates) if rates else None,
        "required_mbps": bar.required,
        "required_is": f"{OF_BOTH} of what manual offload of the same layers sustained with copying and computing at "
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
        "windows": windows_of,
        "bytes_that_stream": flow.streamed,
        "overlap_ratio": together,
        "overlap_by_hand": bar.together,
        "carried_over_counted": Unmeasured(reason="no counter of the link") if over is None else over,
        "copy_mean_mbps": mean,
        "stalled_seconds": sum(copy.stalled_seconds or 0.0 for copy in flow.copies),
        "copies": [
            [c.layer, c.bytes_moved, c.seconds, c.begun, c.stalled_seconds, c.overlapped_seconds] for c in flow.copies
        ],
    }


def _by_share(wanted: PcieFlatline, above: float) -> dict[str, Any]:
    """Return the verdict on a configured bar: the share of all windows decides."""
    return {"verdict": "holds" if above >= wanted.sustained_ratio else "refuted"}


def _beside_plain(wanted: PcieFlatline, bar: Bar, flow: Flow) -> dict[str, Any]:
    """Return the verdict on a bar that was measured here: what a share of the windows reached, over what the same share
    of manual offload's did, round by round. It may not be one that waiting for a core alone could have turned: had
    manual offload never waited it would be held against the lower end of the interval, had ours not, against the
    higher."""
    ours = sustained_in(moved_by(flow.copies), flow.spans, wanted.sustained_ratio)
    pairs, short = list(zip(ours, bar.rounds, strict=False)), any(span.seconds < windows.SECONDS for span in flow.spans)
    if not pairs or short or any(plain == 0.0 for _, plain in pairs):
        reason = f"Rounds of passes are shorter than a window of {windows.SECONDS} s; stream a larger model."
        return {"verdict": "undecided", "reason": reason}
    found = MedianInterval.of(ratios(*zip(*pairs, strict=True)))
    waited = {"djinn": _share(flow.without_core, flow.seconds), "manual_offload": bar.without_core}
    ours_ran, plain_ran = (max(0.0, 1 - (share or 0.0)) for share in waited.values())  # shares of the time, at least
    holds, refuted = found.low * plain_ran >= OF_BOTH, found.high < OF_BOTH * ours_ran
    fields = {**found.fields(), "bar": OF_BOTH, "without_core": waited, "cores_first": flow.cores_first}
    if found.confidence < CONFIDENCE:
        return {**fields, "verdict": "undecided", "reason": f"{found.count} rounds are too few for an interval."}
    if holds or refuted:
        return {**fields, "verdict": "holds" if holds else "refuted"}
    return {**fields, "verdict": "undecided", "reason": _open(found, waited)}


def _open(found: MedianInterval, waited: Mapping[str, float | None]) -> str:
    spelled = f"{found.median:.2f} of manual offload's bandwidth ({found.low:.2f} to {found.high:.2f}), bar {OF_BOTH}"
    lost = " and ".join(f"{100 * share:.0f} %" for share in waited.values() if share is not None)
    loaded = f"; threads of ours and of manual offload were without a core for {lost} of the time" if lost else ""
    return f"Windows of wall time cannot be judged here: {spelled}{loaded}."
