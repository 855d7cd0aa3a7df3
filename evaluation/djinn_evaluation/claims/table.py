"""The claims of the original's documents, one by one, in the order of its sentences. Data, and nothing else."""

from __future__ import annotations

from typing import Final

from djinn_evaluation.claims import verdicts
from djinn_evaluation.claims.claim import GPU, StatedClaim

W: Final = "whitebox/djinn_breakpoint_results.json: "
TWICE: Final = "whitebox+whitebox_again/djinn_breakpoint_results.json: "
EAGER: Final = "whitebox+whitebox_again/pytorch_eager_results.json: "
MISTRAL: Final = "whitebox_mistral/djinn_breakpoint_results.json: "
VLLM: Final = "whitebox+whitebox_again/vllm_results.json: "
P: Final = "pressure+pressure_again/memory_pressure_results.json: "
FEW: Final = "pressure_few+pressure_fewer/memory_pressure_results.json: "
RESUMED: Final = "resume_latency/djinn_resume_latency.json: "
COST: Final = "checkpoint_cost/checkpoint_cost_results.json: "
LOGITS: Final = "validation+validation_again/logit_equivalence_results.json: "
FLAT: Final = "validation+validation_again/pcie_flatline_results.json: "
SLEEP: Final = "validation+validation_again/agent_sleep_resume_results.json: "
AGENTS: Final = "agents/agents_results.json: "
STREAMING: Final = "streaming/streaming_results.json: "
SHAPE: Final = "architectures/Llama-2-13b-hf.json: "
LINKS: Final = {TWICE: "", P: "", COST: "", RESUMED: "metadata.", LOGITS: ""}  # by plain PyTorch, once in each run
OF_LINKS: Final = {
    "rates": " & ".join(f"{file}{inside}link.in.link_gb_per_s" for file, inside in LINKS.items()),
    "device": " & ".join(f"{file}device" for file in LINKS),
}

CLAIMS: Final = (
    StatedClaim(
        number=1,
        sentence="100.00 % (0.00 %) token accuracy, 3 layers x 3 trials, GPT-2, 512 tokens",
        measured="tokens, and logits bit for bit, against an uninterrupted run of plain Hugging Face",
        unit="%",
        reads={
            "accuracy": W + "token_accuracy.entries[].token_accuracy",
            "equal": W + "token_accuracy.entries[].bitwise_equal",
        },
        judge=verdicts.accuracy,
        shows={"model": W + "model", "device": W + "device"},
    ),
    StatedClaim(
        number=2,
        sentence="the same for Llama-2-13B at layers 10, 20, 30, and for Mistral-7B",
        measured="likewise",
        unit="%",
        reads={
            "accuracy": W + "token_accuracy.entries[].token_accuracy",
            "equal": W + "token_accuracy.entries[].bitwise_equal",
            "other_accuracy": MISTRAL + "token_accuracy.entries[].token_accuracy",
            "other_equal": MISTRAL + "token_accuracy.entries[].bitwise_equal",
            "model": W + "model",
            "other_model": MISTRAL + "model",
        },
        judge=verdicts.large_accuracy,
        needs="the weights of Llama-2-13B and Mistral-7B, and a GPU that holds them",
        met=verdicts.large_models,
    ),
    StatedClaim(
        number=3,
        sentence="a stop at layer 6 captures [1, 512, 768]",
        measured="shape and bits of the hidden state against a plain hook",
        unit="shape",
        reads={
            "shapes": W + "token_accuracy.entries[].captured_shape",
            "equal": W + "token_accuracy.entries[].captured_bitwise_equal",
        },
        judge=verdicts.capture,
    ),
    StatedClaim(
        number=4,
        sentence="scaling layer 6 by 0.9 changes 0.39 % of tokens, repeatable",
        measured="positions whose most likely token differs; two runs bit for bit",
        unit="%",
        reads={
            "percent": W + "activation_steering.token_diff_percent",
            "changed": W + "activation_steering.output_changed",
            "repeats": W + "activation_steering.repeats_bitwise",
        },
        judge=verdicts.steering,
        shows={"scale": W + "activation_steering.scale", "layer": W + "activation_steering.layer"},
    ),
    StatedClaim(
        number=5,
        sentence="steering costs nothing: resume 2.2 ms steered, 2.5 ms not",
        measured="time until the stopped pass goes on, steered over not steered, in pairs",
        unit="times",
        reads={"pairs": W + "activation_steering.restore_time_pairs_ms"},
        judge=verdicts.steering_cost,
        timed_here=True,
        told_by=GPU,
    ),
    StatedClaim(
        number=6,
        sentence="checkpoint dispatch 0.0 ms for the client",
        measured="the wait of another session's request while a stopped one leaves, beyond that right before, in pairs",
        unit="ms",
        reads={
            "leaving": W + "token_accuracy.entries[].checkpoint_dispatch_ms",
            "still": W + "token_accuracy.entries[].still_dispatch_ms",
        },
        judge=verdicts.dispatch,
        timed_here=True,
        told_by=GPU,
        shows={"caller_waits_ms": W + "token_accuracy.entries[].checkpoint_time_ms"},
    ),
    StatedClaim(
        number=7,
        sentence="checkpoint copy 5 to 10 ms in the background, and no other request is blocked",
        measured="the mover's own milliseconds; a neighbour's tokens/s with the copies over those without, in turns",
        unit="ms",
        reads={
            "copies": COST + "copy_samples_ms",
            "stopped": COST + "neighbour_rates.with_stops",
            "copied": COST + "neighbour_rates.with_write_through",
        },
        judge=verdicts.background_copy,
        timed_here=True,
        told_by=GPU,
    ),
    StatedClaim(
        number=8,
        sentence="restore 2.2 ms, up to 5 ms under load",
        measured="time from the request until the stopped pass can go on",
        unit="ms",
        reads={"times": W + "token_accuracy.entries[].restore_time_ms"},
        judge=verdicts.restore,
        timed_here=True,
        told_by=GPU,
    ),
    StatedClaim(
        number=9,
        sentence="operating overhead below 1 % (0.2 to 0.6 %)",
        measured="(time with a stop - time without) / time without, in pairs",
        unit="%",
        reads={"pairs": W + "os_overhead.pairs_ms", "waited": W + "os_overhead.without_core"},
        judge=verdicts.overhead,
        timed_here=True,
        told_by=GPU,
    ),
    StatedClaim(
        number=10,
        sentence="keys and values never cross: only logits (10 MB) and one activation (4 MB)",
        measured="bytes counted at the socket, beyond the hidden state and the last logits",
        unit="bytes",
        reads={"bytes": W + "wire_repetitions[].kv_bytes_on_wire"},
        judge=verdicts.wire,
        shows={"stop": W + "wire_bytes_stop", "resume": W + "wire_bytes_resume"},
    ),
    StatedClaim(
        number=11,
        sentence="1 GB uploaded again would cost 62.5 ms by PCIe, 800 ms by 10 Gbit/s",
        measured="the same bytes at the rate of plain copies to the device, measured once in each run",
        unit="ms",
        reads=OF_LINKS,
        judge=verdicts.upload,
        needs=GPU,
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=12,
        sentence="request B runs to its end while A is paused, without memory pressure",
        measured="B's end, and its bits against plain Hugging Face",
        unit="share",
        reads={
            "ended": TWICE + "concurrent_demo.request_b_ended_during_pause",
            "equal": TWICE + "concurrent_demo.request_b_bitwise_equal",
        },
        judge=verdicts.other_request,
        shows={"latency_ms": TWICE + "concurrent_demo.request_b_latency_ms"},
    ),
    StatedClaim(
        number=13,
        sentence="PyTorch eager holds 24.3 GB, 100 %, constant, during the pause",
        measured="memory at the end of the pause of several sessions, that at their stops, and by how much it varies",
        unit="GiB",
        reads={
            "held": EAGER + "metrics.vram_held_during_pause_gb",
            "moved": EAGER + "metrics.vram_variation_during_pause_gb",
            "stopped": EAGER + "metrics.vram_at_stop_gb",
        },
        judge=verdicts.eager_holds,
    ),
    StatedClaim(
        number=14,
        sentence="Djinn drops to about 0 GB during the pause",
        measured="the same counter: released without an order, and then with the weights asleep",
        unit="GiB",
        reads={
            "asleep": TWICE + "concurrent_demo.vram_under_nap_gb",
            "before": TWICE + "concurrent_demo.vram_before_pause_gb",
            "released": TWICE + "concurrent_demo.vram_released",
            "device": TWICE + "device",
        },
        judge=verdicts.djinn_drops,
        needs="a GPU: without one the counter is that of a process, which keeps its libraries",
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=15,
        sentence="27 GB + 50 x 1.3 GB = 92 GB on 80 GB",
        measured="by arithmetic, from the shape of Llama-2-13B in 16 bits at 2,048 tokens",
        unit="GiB",
        reads={
            "layers": SHAPE + "num_hidden_layers",
            "width": SHAPE + "hidden_size",
            "inner": SHAPE + "intermediate_size",
            "vocabulary": SHAPE + "vocab_size",
        },
        judge=verdicts.demand,
    ),
    StatedClaim(
        number=16,
        sentence="50 of 50 sessions spawn; 1 to 40 fit, the 41st triggers a swap, old ones cycle",
        measured="the session with which the first eviction came, the sessions alive at once, and those that came back",
        unit="session",
        reads={
            "asked": P + "num_sessions_requested",
            "spawned": P + "num_sessions_spawned",
            "alive": P + "sessions_alive_max",
            "events": P + "swap_events",
            "progression": P + "vram_progression",
            "capacity": P + "capacity_gb",
            "demand": P + "demand_gb",
            "session": P + "kv_per_session_gb",
            "equal": P + "outputs_equal_alone",
        },
        judge=verdicts.all_alive,
    ),
    StatedClaim(
        number=17,
        sentence="memory plateaus at 77 to 79 of 80 GB",
        measured="sampled at 10 Hz or more, the most as a share of the capacity, which has to be 77 / 80 or more",
        unit="%",
        reads={
            "plateau": P + "plateau_achieved",
            "samples": P + "vram_samples",
            "capacity": P + "capacity_gb",
            "hertz": P + "samples_per_second_least",
        },
        judge=verdicts.plateau,
    ),
    StatedClaim(
        number=18,
        sentence="swap latency 50 to 80 ms (PCIe) for 1.3 GB; restore 20 to 50 ms",
        measured="bytes a second of each swap, by the mover's own seconds; 1.3 GB in 80 and in 50 ms are the bars",
        unit="bytes/s",
        reads={"events": P + "swap_events[]", "device": P + "device"},
        judge=verdicts.swap_speed,
        needs=GPU,
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=19,
        sentence="N = 6 proves nothing",
        measured="a run whose sessions all fit is refused",
        unit="share",
        reads={"status": FEW + "status", "demand": FEW + "demand_gb", "capacity": FEW + "capacity_gb"},
        judge=verdicts.refusal,
        refused=True,
    ),
    StatedClaim(
        number=20,
        sentence="ring: norm(difference) < 0.1, or the five most likely tokens identical, 7B and 70B",
        measured="bit for bit on one device; else by both criteria; the worst sample of each run",
        unit="norm",
        reads={
            "bitwise": LOGITS + "bitwise_equal",
            "same_device": LOGITS + "same_device",
            "likeliest": LOGITS + "preds_match",
            "norm": LOGITS + "comparison_metrics.norm_diff",
        },
        judge=verdicts.ring_logits,
        shows={"model": LOGITS + "model", "passes_per_sample": LOGITS + "passes_per_sample"},
    ),
    StatedClaim(
        number=21,
        sentence="ring: PCIe above 20,000 MB/s in more than 80 % of samples, for 10 s or more",
        measured="the share of samples above, during passes",
        unit="%",
        reads={
            "rates": FLAT + "samples_mbps",
            "seconds": FLAT + "metrics.elapsed_seconds",
            "failures": FLAT + "failures",
            "device": FLAT + "gpu_info.device",
        },
        judge=verdicts.flatline,
        needs=GPU,
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=22,
        sentence="pinned host-to-device copies above 22 GB/s as a precondition",
        measured="plain copies to the device, measured once in each run",
        unit="GB/s",
        reads=OF_LINKS,
        judge=verdicts.pinned,
        needs=GPU,
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=23,
        sentence="an agent survives 30 s idle without OOM, its text coherent, swap and restore in the log",
        measured="bits of the text, and the agent's evictions and restores",
        unit="share",
        reads={
            "equal": SLEEP + "text_equal",
            "out": SLEEP + "metrics.swaps_detected",
            "back": SLEEP + "metrics.restores_detected",
        },
        judge=verdicts.sleeper,
        shows={"seconds": SLEEP + "sleep_duration_seconds"},
    ),
    StatedClaim(
        number=24,
        sentence="semantic scheduling (experiment 1): 50 and 80 agents that think and use tools",
        measured="first token after a pause, hinted over least recently used, p99; every agent's bits against alone",
        unit="times",
        reads={
            "agents": AGENTS + "agents",
            "comparisons": AGENTS + "comparisons",
        },
        judge=verdicts.agents,
        told_by="a GPU, and six repetitions (repetitions=6)",
    ),
    StatedClaim(
        number=25,
        sentence="virtual memory (experiment 2): models larger than the card",
        measured="the speed of a streamed token, of what copying and computing at once attain; logits",
        unit="times",
        reads={
            "tokens": STREAMING + "models[].of_both_at_once.token",
            "logits": STREAMING + "models[].logits.repetitions_passed[]",
            "bar": STREAMING + "config.least_of_both",
        },
        judge=verdicts.streaming,
        told_by=GPU,
    ),
    StatedClaim(
        number=26,
        sentence="slab pre-allocated 72 GB, weights 27 GB, KV 1.3 GB a session explain 41 GB",
        measured="the slab before anything ran, as a share of its limit; every line of the breakdown is read",
        unit="%",
        reads={
            "slab": TWICE + "memory_breakdown.vmu_slab_preallocated_gb",
            "limit": TWICE + "memory_breakdown.slab_limit_gb",
        },
        judge=verdicts.preallocated,
    ),
    StatedClaim(
        number=27,
        sentence="vLLM cannot pause; it can only read",
        measured="what vLLM's own interface does",
        unit="share",
        reads={"stops": VLLM + "conclusion.supports_layer_breakpoints", "initialized": VLLM + "vllm_initialized"},
        judge=verdicts.vllm,
        needs="a GPU with vLLM",
        met=verdicts.vllm_ran,
    ),
    StatedClaim(
        number=28,
        sentence="clients can be phones and laptops",
        measured="seconds of a stop and of the hidden state at its last position, over a line of 50 Mbit/s and 20 ms",
        unit="s",
        reads={"seconds": W + "slow_line.seconds"},
        judge=verdicts.slow_line,
        shows={"bytes": W + "slow_line.bytes", "all_positions_seconds": W + "slow_line.seconds_of_all_positions"},
    ),
    StatedClaim(
        number=29,
        sentence="larger sequences (1,024 to 2,048), batch processing, A100 and H100 alike",
        measured="the bits of resumed runs on each of the cards",
        unit="share",
        reads={"equal": W + "token_accuracy.entries[].bitwise_equal"},
        judge=verdicts.both_cards,
        told_by="an A100 and an H100",
        shows={"device": W + "device"},
    ),
)
