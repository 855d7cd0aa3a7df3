"""The field lists of the original's parsers: a result file's required fields, by dotted path; `[]` for each entry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LATENCY = """model layers results[].layer results[].resume_latency_ms results[].resume_latency_std_ms
    results[].resume_latency_median_ms results[].num_samples results[].data_transferred_mb metadata"""

FIELDS = {
    "djinn_breakpoint_results.json": """status baseline_prompt
        token_accuracy.entries[].trial token_accuracy.entries[].layer token_accuracy.entries[].token_accuracy
        token_accuracy.entries[].latency_ms token_accuracy.entries[].checkpoint_time_ms
        token_accuracy.entries[].restore_time_ms token_accuracy.entries[].checkpoint_size_mb
        token_accuracy.entries[].os_overhead_percent token_accuracy.entries[].layers_run_before_stop
        token_accuracy.entries[].layers_run_after_resume token_accuracy.entries[].bitwise_equal
        token_accuracy.entries[].kv_bytes_resident_during_pause
        token_accuracy.token_accuracy_mean token_accuracy.token_accuracy_std token_accuracy.latency_mean_ms
        token_accuracy.latency_std_ms token_accuracy.os_overhead_mean_percent token_accuracy.os_overhead_max_percent
        os_overhead.pairs_ms os_overhead.without_core os_overhead.percent.median os_overhead.percent.low
        os_overhead.percent.high
        activation_steering.layer activation_steering.scale activation_steering.output_changed
        activation_steering.baseline_restore_time_ms activation_steering.steered_restore_time_ms
        activation_steering.token_diff_percent activation_steering.steering_successful
        concurrent_demo.request_b_latency_ms concurrent_demo.vram_before_pause_gb
        concurrent_demo.vram_during_pause_gb concurrent_demo.resume_restore_time_ms concurrent_demo.request_b_tokens
        concurrent_demo.session_bytes_on_device concurrent_demo.sessions_until_full
        concurrent_demo.sessions_until_full_reached
        memory_breakdown.vmu_slab_preallocated_gb memory_breakdown.model_weights_gb
        memory_breakdown.kv_cache_per_session_gb memory_breakdown.activation_stack_gb memory_breakdown.gpu_total_gb
        memory_breakdown.explanation wire_bytes_stop wire_bytes_resume kv_bytes_on_wire""",
    "pytorch_eager_results.json": """status baseline model breakpoint_layer pause_duration_seconds
        metrics.vram_held_during_pause_gb metrics.vram_variation_during_pause_gb metrics.gpu_free_during_pause_gb
        metrics.can_run_other_requests metrics.sessions_until_full metrics.sessions_until_full_reached
        conclusion.vram_released conclusion.allows_concurrent_requests
        conclusion.requires_full_gpu_for_pause""",
    "vllm_results.json": "status baseline model vllm_installed vllm_initialized api_tests conclusion",
    "comparative_results.json": """timestamp baselines.pytorch_eager baselines.vllm baselines.djinn
        summary_table.breakpoint_support summary_table.vram_during_pause_gb summary_table.concurrent_requests
        summary_table.activation_steering summary_table.token_accuracy_percent
        summary_table.sessions_until_full summary_table.sessions_until_full_reached""",
    "memory_pressure_results.json": """status num_sessions_requested num_sessions_spawned vram_progression[].session
        vram_progression[].vram_gb vram_progression[].timestamp vram_stats.min_gb vram_stats.max_gb vram_stats.avg_gb
        swap_latencies_ms total_elapsed_seconds swapping_active demand_gb capacity_gb capacity_imposed
        sessions_alive_max swap_events[].session swap_events[].direction swap_events[].bytes swap_events[].ms
        swap_events[].gb_per_s swap_events[].timestamp plateau_achieved outputs_equal_alone slab_books_gb""",
    "recompute_latency.json": LATENCY,
    "manual_offload_latency.json": LATENCY,
    "djinn_resume_latency.json": LATENCY,
    "checkpoint_cost_results.json": """status model neighbour_tokens_per_s.alone neighbour_tokens_per_s.with_stops
        neighbour_tokens_per_s.with_write_through dispatch_ms copy_ms restore_ms bytes interference_percent""",
    "logit_equivalence_results.json": """test model passed is_match preds_match comparison_metrics.max_diff
        comparison_metrics.mean_diff comparison_metrics.norm_diff pytorch_metrics ring_metrics timestamp
        bytes_streamed_per_pass""",
    "pcie_flatline_results.json": """test model passed bandwidth_mbps required_mbps metrics.iterations
        metrics.elapsed_seconds metrics.estimated_bytes_loaded metrics.estimated_mbps metrics.gpu_mem_peak gpu_info
        timestamp samples_mbps samples_above_ratio windows.verdict undecided overlap_by_hand""",
    "agent_sleep_resume_results.json": """test model passed sleep_duration_seconds metrics.initial_tokens
        metrics.initial_time_ms metrics.resumed_tokens metrics.resumed_time_ms metrics.sleep_duration_ms
        metrics.gpu_mem_before_sleep_gb metrics.gpu_mem_after_sleep_gb metrics.gpu_mem_after_resume_gb
        metrics.swaps_detected metrics.restores_detected metrics.coherence_score timestamp""",
    "streaming_results.json": """status config models[].model models[].weights_gb models[].share_of_layers
        models[].measured models[].reference models[].reference_device models[].device
        models[].bytes_streamed_per_pass models[].bytes_moved_per_pass models[].layers_streamed
        models[].waited_ms_by_layer models[].outside_of_the_pass_ms models[].sides
        models[].limit.token_ms models[].limit.first_token_ms
        models[].limit.bandwidth_gb_per_s models[].of_both_at_once.first_token.median
        models[].of_both_at_once.start_of_a_pass.low models[].of_both_at_once.token.high
        models[].of_both_at_once.token.verdict models[].of_the_limit.token models[].logits.decided_by
        models[].logits.bitwise_equal models[].logits.five_most_likely_equal models[].logits.reference_is_plain
        models[].failures summary_table timestamp""",
    "agents_results.json": """status model demand_gb capacity_gb ways[].way ways[].agents ways[].agents_served
        ways[].agents_refused ways[].refusal ways[].turns_asked_again ways[].texts_equal_alone ways[].bits_equal_alone
        ways[].first_token_ms.p50.value ways[].first_token_ms.p50.low ways[].first_token_ms.p50.high
        ways[].first_token_ms.p90.value ways[].first_token_ms.p99.value ways[].token_ms.p50.value
        ways[].concurrency.alive_max ways[].concurrency.on_device_max ways[].concurrency.pages_in_use_max
        ways[].moves.out ways[].moves.back_when_needed ways[].moves.back_ahead ways[].prefetches.begun
        agents[].way agents[].text_equal_alone agents[].bits_equal_alone
        comparisons[].way comparisons[].against comparisons[].first_token.p50.lower link vllm.status vllm.reason
        prediction.status""",
    "validation_summary.json": """config experiment timestamp duration_seconds summary.total summary.passed
        summary.failed summary.skipped summary.errors results.logit_equivalence results.pcie_flatline
        results.agent_sleep_resume""",
}


def missing(folder: Path) -> list[str]:
    """Fields that the result files in a folder lack, and nulls that have no reason. A file of no list is one too."""
    return [f"{file.name}: {path}" for file in sorted(folder.glob("*.json")) for path in _missing(file)]


def _missing(file: Path) -> Iterator[str]:
    found = json.loads(file.read_text())
    if file.name not in FIELDS:
        yield "a file that no list knows"
        return
    reasons = {re.sub(r"\[\d+\]", "[]", field) for field in found.get("reasons", {})}
    for path in FIELDS[file.name].split():
        yield from _lacks(found, path, path, reasons)


def _lacks(value: Any, rest: str, path: str, reasons: set[str]) -> Iterator[str]:
    """Yield paths missing at `rest` below `value`, in every entry of a list on the way, and nulls without a reason."""
    name, _, further = rest.partition(".")
    many = name.endswith("[]")
    name = name.removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        yield path
        return
    inner = value[name]
    if inner is None and not any(path.startswith(known) for known in reasons):
        yield f"{path} is null without a reason"
    elif many:
        for entry in inner:
            yield from _lacks(entry, further, path, reasons)
    elif further and inner is not None:
        yield from _lacks(inner, further, path, reasons)
