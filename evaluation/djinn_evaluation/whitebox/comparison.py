"""The comparison table: every cell computed from the result files, `null` where its side did not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from djinn_evaluation.course import Unmeasured, now

Fields = Mapping[str, Any]


def compare(eager: Fields | None, vllm: Fields | None, djinn: Fields | None) -> dict[str, Any]:
    """Return the content of comparative_results.json."""
    sides = {"pytorch_eager": eager, "vllm": vllm, "djinn": djinn}
    rows = {
        "breakpoint_support": {"pytorch_eager": _eager_stops, "vllm": _vllm_stops, "djinn": _djinn_stops},
        "vram_during_pause_gb": {"pytorch_eager": _eager_held, "vllm": _vllm_held, "djinn": _djinn_held},
        "vram_per_paused_session_mb": {"pytorch_eager": _eager_each, "vllm": _nothing, "djinn": _djinn_each},
        "vram_released": {"pytorch_eager": _eager_released, "vllm": _nothing, "djinn": _djinn_released},
        "requires_full_gpu_for_pause": {"pytorch_eager": _eager_full, "vllm": _nothing, "djinn": _djinn_full},
        "sessions_until_full": {"pytorch_eager": _eager_fits, "vllm": _nothing, "djinn": _djinn_fits},
        "sessions_until_full_reached": {"pytorch_eager": _eager_fills, "vllm": _nothing, "djinn": _djinn_fills},
        "concurrent_requests": {"pytorch_eager": _eager_others, "vllm": _vllm_others, "djinn": _djinn_others},
        "activation_steering": {"pytorch_eager": _eager_steers, "vllm": _nothing, "djinn": _djinn_steers},
        "token_accuracy_percent": {"pytorch_eager": _eager_accuracy, "vllm": _nothing, "djinn": _djinn_accuracy},
    }
    table = {row: {side: _cell(cells[side], sides[side]) for side in sides} for row, cells in rows.items()}
    return {
        "timestamp": now(),
        "baselines": {side: _status(found) for side, found in sides.items()},
        "summary_table": table,
    }


def _cell(reader: Any, fields: Fields | None) -> Any:
    if fields is None:
        return Unmeasured(reason="this side was left out")
    if fields["status"] == "not_run":
        return Unmeasured(reason=next(iter(fields.get("reasons", {}).values()), "this side did not run"))
    found = reader(fields)
    return Unmeasured(reason="this side was not measured in this") if found is None else found


def _status(fields: Fields | None) -> dict[str, Any]:
    return {"status": "not_run" if fields is None else fields["status"]}


def _nothing(fields: Fields) -> None:
    return None


def _eager_stops(fields: Fields) -> bool:
    return bool(fields["metrics"]["layers_run_before_stop"] == fields["breakpoint_layer"] + 1)


def _eager_held(fields: Fields) -> Any:
    return fields["metrics"]["vram_held_during_pause_gb"]


def _eager_each(fields: Fields) -> Any:
    return fields["metrics"]["vram_per_paused_session_mb"]


def _eager_released(fields: Fields) -> Any:
    return fields["conclusion"]["vram_released"]


def _eager_full(fields: Fields) -> Any:
    return fields["conclusion"]["requires_full_gpu_for_pause"]


def _eager_fits(fields: Fields) -> Any:
    return fields["metrics"]["sessions_until_full"]


def _eager_fills(fields: Fields) -> Any:
    return fields["metrics"]["sessions_until_full_reached"]


def _eager_others(fields: Fields) -> Any:
    return fields["metrics"]["can_run_other_requests"]


def _eager_steers(fields: Fields) -> Any:
    metrics = fields["metrics"]
    changed = metrics.get("steering_token_diff_percent")
    return None if changed is None else changed > 0 and metrics["steering_repeats"]


def _eager_accuracy(fields: Fields) -> Any:
    return fields["metrics"]["token_accuracy_percent"]


def _vllm_stops(fields: Fields) -> Any:
    return fields["conclusion"]["supports_layer_breakpoints"]


def _vllm_held(fields: Fields) -> Any:
    return fields["pause"].get("vram_during_pause_gb")


def _vllm_others(fields: Fields) -> Any:
    return fields["pause"].get("request_b_ended_during_pause")


def _djinn_stops(fields: Fields) -> bool:
    entries = fields["token_accuracy"]["entries"] if fields.get("token_accuracy") else []
    return bool(entries) and all(entry["layers_run_before_stop"] == entry["layer"] + 1 for entry in entries)


def _djinn_held(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"]["vram_during_pause_gb"]


def _djinn_each(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"].get("vram_per_paused_session_mb")


def _djinn_released(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"]["vram_released"]


def _djinn_full(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"]["requires_full_gpu_for_pause"]


def _djinn_fits(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"].get("sessions_until_full")


def _djinn_fills(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"].get("sessions_until_full_reached")


def _djinn_others(fields: Fields) -> Any:
    return fields["concurrent_demo"] and fields["concurrent_demo"]["request_b_ended_during_pause"]


def _djinn_steers(fields: Fields) -> Any:
    return fields["activation_steering"] and fields["activation_steering"]["steering_successful"]


def _djinn_accuracy(fields: Fields) -> Any:
    return fields["token_accuracy"] and fields["token_accuracy"]["token_accuracy_mean"]
