"""The plots of a result file. A file without the fields has none."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from djinn_evaluation.report import plots

Fields = Mapping[str, Any]
MOST_POINTS = 1000


def of_file(fields: Fields) -> list[str]:
    drawn = [
        _stops(fields.get("token_accuracy")),
        _pause(fields.get("concurrent_demo")),
        _progression(fields),
        _flatline(fields),
        _neighbour(fields.get("neighbour_tokens_per_s")),
        _streamed(fields.get("models")),
        _agents(fields.get("ways")),
    ]
    return [plot for plot in drawn if plot]


def _stops(accuracy: Fields | None) -> str:
    """Plot mean milliseconds of copying a stopped session out and back, by layer."""
    if not accuracy or not accuracy.get("entries"):
        return ""
    groups: dict[str, dict[str, float]] = {}
    for layer in sorted({entry["layer"] for entry in accuracy["entries"]}):
        found = [entry for entry in accuracy["entries"] if entry["layer"] == layer]
        groups[f"layer {layer}"] = {
            name: statistics.fmean(times)
            for name, key in (("out to the host", "checkpoint_copy_ms"), ("back", "restore_copy_ms"))
            if (times := [entry[key] for entry in found if entry.get(key) is not None])
        }
    return plots.bars(groups, x="stopped after", y="ms")


def _pause(demo: Fields | None) -> str:
    if not demo or not demo.get("vram_samples_gb"):
        return ""
    curve = [*zip(demo["vram_samples_seconds"], demo["vram_samples_gb"], strict=True)]
    return plots.lines({"device memory": curve}, x="seconds of the pause", y="GiB")


def _progression(fields: Fields) -> str:
    """Plot device memory over the run by the engine's accounting, with swaps and the capacity marked."""
    samples = fields.get("vram_samples")
    if not samples:
        return ""
    curves = {
        "weights and allocated pages": [(seconds, accounted) for seconds, accounted, *_ in samples],
        "of it in use": [(seconds, used) for seconds, _, used, *_ in samples],
    }
    return plots.lines(
        curves,
        x="seconds",
        y="GiB",
        level=("capacity", fields["capacity_gb"]),
        marks={
            f"swap {way}": [event["timestamp"] for event in fields["swap_events"] if event["direction"] == way]
            for way in ("out", "in")
        },
    )


def latencies(written: Mapping[str, Fields]) -> str:
    """Plot median milliseconds of every side by layer, and a limit: the time for computing only the layers above. It is
    plain Hugging Face's least median for a whole pass times the share of those layers."""
    sides = {name: fields for name, fields in written.items() if name.endswith("_latency.json")}
    groups: dict[str, dict[str, float]] = {}
    limits: dict[str, float] = {}
    for name, fields in sides.items():
        for result in fields["results"]:
            side = name.removesuffix("_latency.json").replace("_", " ")
            place = f"{side}, KV {result['kv']}" if "kv" in result else side
            layer, median = f"layer {result['layer']}", result["resume_latency_median_ms"]
            groups.setdefault(layer, {})[place] = median
            count = fields["metadata"].get("num_layers")
            if name.startswith("recompute") and count:
                least = min(one["resume_latency_median_ms"] for one in fields["results"])
                limits[layer] = least * (count - result["layer"] - 1) / count
    return plots.bars(groups, x="stopped after", y="ms", limits=("limit: the layers above alone", limits))


def _neighbour(rates: Fields | None) -> str:
    groups = {name.replace("_", " "): {"tokens/s": rate} for name, rate in (rates or {}).items() if rate is not None}
    return plots.bars(groups, x="B", y="tokens/s") if groups else ""


def _agents(ways: Sequence[Fields] | None) -> str:
    """Plot the milliseconds to the first token after a pause, for the largest crowd."""
    most = max((one["agents"] for one in ways or ()), default=0)
    groups = {
        one["way"].replace("_", " "): {name: found["value"] for name, found in one["first_token_ms"].items()}
        for one in ways or ()
        if one["agents"] == most and one["first_token_ms"] is not None
    }
    return plots.bars(groups, x=f"{most} agents", y="ms") if groups else ""


def _flatline(fields: Fields) -> str:
    """Plot the bandwidth of each window of wall time, and the required one; many windows are thinned evenly."""
    rates = fields.get("samples_mbps")
    if not rates or "required_mbps" not in fields or "window_seconds" not in fields:
        return ""
    points = [(number * fields["window_seconds"], rate) for number, rate in enumerate(rates)]
    curve = points[:: max(1, len(points) // MOST_POINTS)]
    level = ("required", fields["required_mbps"])
    return plots.lines({"windows of wall time": curve}, x="seconds of passes", y="MiB/s", level=level)


def _streamed(models: Any) -> str:
    """Plot the median milliseconds of a token of every side that ran, by model, and max(compute, bytes / bandwidth)."""
    if not models or "of_both_at_once" not in models[0]:
        return ""
    groups = {
        found["model"]: {
            name.replace("_", " "): side["token_ms"]["median"]
            for name, side in found["sides"].items()
            if name != "copying_alone" and "token_ms" in side
        }
        for found in models
    }
    limits = {found["model"]: found["limit"]["token_ms"]["median"] for found in models}
    return plots.bars(groups, x="model", y="ms a token", limits=("max(compute, bytes / bandwidth)", limits))
