"""The claims of the original's documents, the fields that they read, and the sizes in them. Data, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from djinn_evaluation.claims import verdicts
from djinn_evaluation.claims.judging import GPU, StatedClaim, StatedSize
from djinn_jupyter.units import GIB

W: Final = "whitebox/djinn_breakpoint_results.json: "
TWICE: Final = "whitebox+whitebox_again/djinn_breakpoint_results.json: "
EAGER: Final = "whitebox+whitebox_again/pytorch_eager_results.json: "
GPT2: Final = "whitebox_gpt2/djinn_breakpoint_results.json: "
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


def of(place: str, **fields: str) -> dict[str, str]:
    """Return the fields of one file, or of a part of it, by the words that a claim has for them."""
    return {word: place + field for word, field in fields.items()}


LAYERS: Final = W + "token_accuracy.entries[].layer"
COPIED: Final = P + "swap_events[].bytes"
SHAPES: Final = GPT2 + "token_accuracy.entries[].captured_shape"
NEAR: Final = verdicts.NEAR  # of an amount of memory
BILLIONS: Final = 2 * 1e9 / GIB  # GiB of a billion parameters in 16 bits

OF_SLAB: Final = "memory_breakdown.slab_limit_gb"
OF_WEIGHTS: Final = "memory_breakdown.model_weights_gb"
OF_SESSION: Final = "memory_breakdown.kv_cache_per_session_gb"


def decimal(found: list[float]) -> float:
    """Return the GB of the least of some GiB."""
    return min(found) * GIB / 1e9


def least_copied(found: list[int]) -> int:
    """Return the least bytes of swaps that copied some."""
    return min(filter(None, found), default=0)


def different(found: list[Any]) -> int:
    """Return the number of distinct values of a run."""
    return len(set(found))


def positions(number: int) -> StatedSize:
    """Return the size of the prompt that was stopped in, in tokens."""
    return StatedSize(number=number, what="positions", field=W + "baseline_prompt", of=len)


SIZES: Final[Mapping[int, tuple[StatedSize, ...]]] = {
    1: (
        positions(512),
        StatedSize(number=3, what="layers", field=LAYERS, of=different),
        StatedSize(number=3, what="trials", field=W + "token_accuracy.entries[].trial", of=different),
    ),
    2: (StatedSize(number=30, what="the last layer", field=LAYERS, of=max), positions(512)),
    3: (
        StatedSize(number=6, what="the last layer", field=GPT2 + "token_accuracy.entries[].layer", of=max),
        StatedSize(number=512, what="positions", field=SHAPES, of=lambda shapes: min(shape[1] for shape in shapes)),
        StatedSize(number=768, what="features", field=SHAPES, of=lambda shapes: min(shape[2] for shape in shapes)),
    ),
    4: (
        StatedSize(number=6, what="layer", field=W + "activation_steering.layer"),
        StatedSize(number=0.9, what="scale", field=W + "activation_steering.scale"),
    ),
    10: (StatedSize(number=4e6, what="bytes of the activation", field=W + "wire_bytes_stop"),),
    13: (StatedSize(number=24.3, what="GiB", near=NEAR),),
    16: (
        StatedSize(number=50, what="sessions", field=P + "num_sessions_requested"),
        StatedSize(number=41, what="the session that triggers a swap"),
    ),
    17: (StatedSize(number=80, what="GiB of the card", field=P + "card_gb", near=NEAR),),
    18: (StatedSize(number=1.3e9, what="bytes of a swap", field=COPIED, of=least_copied, near=NEAR),),
    19: (StatedSize(number=6, what="sessions", field=FEW + "num_sessions_requested"),),
    20: (
        StatedSize(
            number=70,
            what="billions of parameters in 16 bits",
            field=LOGITS + "pytorch_metrics.weights_gb",
            of=lambda found: max(found) / BILLIONS,
            near=NEAR,
        ),
    ),
    23: (
        StatedSize(
            number=30,
            what="seconds idle",
            field=SLEEP + "metrics.sleep_duration_ms",
            of=lambda found: min(found) / 1000,
        ),
    ),
    24: (StatedSize(number=80, what="agents", field=AGENTS + "ways[].agents", of=max),),
    26: (
        StatedSize(number=72, what="GiB of the slab", field=TWICE + OF_SLAB, near=NEAR),
        StatedSize(number=27, what="GB of weights", field=TWICE + OF_WEIGHTS, of=decimal, near=NEAR),
        StatedSize(number=1.3, what="GB of a session", field=TWICE + OF_SESSION, of=decimal, near=NEAR),
    ),
}


TOKENS: Final = "token_accuracy.entries[]."
ON_A_GPU: Final[dict[str, Any]] = {"needs": GPU, "met": verdicts.on_a_gpu}
TIMED: Final[dict[str, Any]] = {"timed_here": True, "told_by": GPU}
STATED: Final = (
    StatedClaim(
        number=1,
        sentence="100.00 % (0.00 %) token accuracy, 3 layers x 3 trials, GPT-2, 512 tokens",
        measured="tokens, and logits bit for bit, against an uninterrupted run of plain Hugging Face",
        unit="%",
        reads=of(W + TOKENS, accuracy="token_accuracy", equal="bitwise_equal"),
        judge=verdicts.accuracy,
        shows=of(W, model="model", device="device"),
    ),
    StatedClaim(
        number=2,
        sentence="the same for Llama-2-13B at layers 10, 20, 30, and for Mistral-7B",
        measured="likewise",
        unit="%",
        reads=of(W + TOKENS, accuracy="token_accuracy", equal="bitwise_equal")
        | of(MISTRAL + TOKENS, other_accuracy="token_accuracy", other_equal="bitwise_equal")
        | of(W, model="model")
        | of(MISTRAL, other_model="model"),
        judge=verdicts.large_accuracy,
        needs="the weights of Llama-2-13B and Mistral-7B, and a GPU that holds them",
        met=verdicts.large_models,
    ),
    StatedClaim(
        number=3,
        sentence="a stop at layer 6 captures [1, 512, 768]",
        measured="shape and bits of the hidden state against a plain hook",
        unit="shape",
        reads=of(GPT2 + TOKENS, shapes="captured_shape", equal="captured_bitwise_equal"),
        judge=verdicts.capture,
    ),
    StatedClaim(
        number=4,
        sentence="scaling layer 6 by 0.9 changes 0.39 % of tokens, repeatable",
        measured="positions whose most likely token differs; two runs bit for bit",
        unit="%",
        reads=of(
            W,
            percent="activation_steering.token_diff_percent",
            changed="activation_steering.output_changed",
            repeats="activation_steering.repeats_bitwise",
        ),
        judge=verdicts.steering,
        shows=of(W, scale="activation_steering.scale", layer="activation_steering.layer"),
    ),
    StatedClaim(
        number=5,
        sentence="steering costs nothing: resume 2.2 ms steered, 2.5 ms not",
        measured="time until the stopped pass goes on, steered over not steered, in pairs",
        unit="times",
        reads=of(W, pairs="activation_steering.restore_time_pairs_ms"),
        judge=verdicts.steering_cost,
        **TIMED,
    ),
    StatedClaim(
        number=6,
        sentence="checkpoint dispatch 0.0 ms for the client",
        measured="the wait of another session's request while a stopped one leaves, beyond that right before, in pairs",
        unit="ms",
        reads=of(W + TOKENS, leaving="checkpoint_dispatch_ms", still="still_dispatch_ms"),
        judge=verdicts.dispatch,
        **TIMED,
        shows=of(W + TOKENS, caller_waits_ms="checkpoint_time_ms"),
    ),
    StatedClaim(
        number=7,
        sentence="checkpoint copy 5 to 10 ms in the background, and no other request is blocked",
        measured="the mover's own milliseconds; a neighbour's tokens/s with the copies over those without, in turns",
        unit="ms",
        reads=of(
            COST,
            copies="copy_samples_ms",
            stopped="neighbour_rates.with_stops",
            copied="neighbour_rates.with_write_through",
        ),
        judge=verdicts.background_copy,
        **TIMED,
    ),
    StatedClaim(
        number=8,
        sentence="restore 2.2 ms, up to 5 ms under load",
        measured="time from the request until the stopped pass can go on",
        unit="ms",
        reads=of(W + TOKENS, times="restore_time_ms"),
        judge=verdicts.restore,
        **TIMED,
    ),
    StatedClaim(
        number=9,
        sentence="operating overhead below 1 % (0.2 to 0.6 %)",
        measured="(time with a stop - time without) / time without, in pairs",
        unit="%",
        reads=of(W, pairs="os_overhead.pairs_ms", waited="os_overhead.without_core"),
        judge=verdicts.overhead,
        **TIMED,
    ),
    StatedClaim(
        number=10,
        sentence="keys and values never cross: only logits (10 MB) and one activation (4 MB)",
        measured="bytes counted at the socket, beyond the hidden state and the last logits",
        unit="bytes",
        reads=of(W, bytes="wire_repetitions[].kv_bytes_on_wire"),
        judge=verdicts.wire,
        shows=of(W, stop="wire_bytes_stop", resume="wire_bytes_resume"),
    ),
    StatedClaim(
        number=11,
        sentence="1 GB uploaded again would cost 62.5 ms by PCIe, 800 ms by 10 Gbit/s",
        measured="the same bytes at the rate of plain copies to the device, measured once in each run",
        unit="ms",
        reads=OF_LINKS,
        judge=verdicts.upload,
        **ON_A_GPU,
    ),
    StatedClaim(
        number=12,
        sentence="request B runs to its end while A is paused, without memory pressure",
        measured="B's end, and its bits against plain Hugging Face",
        unit="share",
        reads=of(
            TWICE, ended="concurrent_demo.request_b_ended_during_pause", equal="concurrent_demo.request_b_bitwise_equal"
        ),
        judge=verdicts.other_request,
        shows=of(TWICE, latency_ms="concurrent_demo.request_b_latency_ms"),
    ),
    StatedClaim(
        number=13,
        sentence="PyTorch eager holds 24.3 GB, 100 %, constant, during the pause",
        measured="memory at the end of the pause of several sessions, that at their stops, and by how much it varies",
        unit="GiB",
        reads=of(
            EAGER,
            held="metrics.vram_held_during_pause_gb",
            moved="metrics.vram_variation_during_pause_gb",
            stopped="metrics.vram_at_stop_gb",
        ),
        judge=verdicts.eager_holds,
    ),
    StatedClaim(
        number=14,
        sentence="Djinn drops to about 0 GB during the pause",
        measured="the same counter: released without an order, and then with the weights asleep",
        unit="GiB",
        reads=of(
            TWICE,
            asleep="concurrent_demo.vram_under_nap_gb",
            before="concurrent_demo.vram_before_pause_gb",
            released="concurrent_demo.vram_released",
            device="device",
        ),
        judge=verdicts.djinn_drops,
        needs="a GPU: without one the counter is that of a process, which keeps its libraries",
        met=verdicts.on_a_gpu,
    ),
    StatedClaim(
        number=15,
        sentence="27 GB + 50 x 1.3 GB = 92 GB on 80 GB",
        measured="by arithmetic, from the shape of Llama-2-13B in 16 bits at 2,048 tokens",
        unit="GiB",
        reads=of(
            SHAPE, layers="num_hidden_layers", width="hidden_size", inner="intermediate_size", vocabulary="vocab_size"
        ),
        judge=verdicts.demand,
    ),
    StatedClaim(
        number=16,
        sentence="50 of 50 sessions spawn; 1 to 40 fit, the 41st triggers a swap, old ones cycle",
        measured="the session with which the first eviction came, the sessions alive at once, and those that came back",
        unit="session",
        reads=of(
            P,
            asked="num_sessions_requested",
            spawned="num_sessions_spawned",
            alive="sessions_alive_max",
            events="swap_events",
            progression="vram_progression",
            capacity="capacity_gb",
            demand="demand_gb",
            session="kv_per_session_gb",
            equal="outputs_equal_alone",
        ),
        judge=verdicts.all_alive,
    ),
    StatedClaim(
        number=17,
        sentence="memory plateaus at 77 to 79 of 80 GB",
        measured="the driver's samples, 10 Hz or more: the most as a share of the card, which has to be 77 / 80",
        unit="%",
        reads=of(
            P,
            plateau="plateau_achieved",
            samples="driver_samples",
            capacity="card_gb",
            hertz="samples_per_second_least",
        ),
        judge=verdicts.plateau,
        needs="a GPU, whose driver counts",
        met=verdicts.counted_by_a_driver,
    ),
    StatedClaim(
        number=18,
        sentence="swap latency 50 to 80 ms (PCIe) for 1.3 GB; restore 20 to 50 ms",
        measured="bytes a second of each swap, by the mover's own seconds; 1.3 GB in 80 and in 50 ms are the bars",
        unit="bytes/s",
        reads=of(P, events="swap_events[]", device="device"),
        judge=verdicts.swap_speed,
        **ON_A_GPU,
    ),
    StatedClaim(
        number=19,
        sentence="N = 6 proves nothing",
        measured="a run whose sessions all fit is refused",
        unit="share",
        reads=of(FEW, status="status", demand="demand_gb", capacity="capacity_gb"),
        judge=verdicts.refusal,
        refused=True,
    ),
    StatedClaim(
        number=20,
        sentence="ring: norm(difference) < 0.1, or the five most likely tokens identical, 7B and 70B",
        measured="bit for bit on one device; else by both criteria; the worst sample of each run",
        unit="norm",
        reads=of(
            LOGITS,
            bitwise="bitwise_equal",
            same_device="same_device",
            likeliest="preds_match",
            norm="comparison_metrics.norm_diff",
        ),
        judge=verdicts.ring_logits,
        shows=of(LOGITS, model="model", passes_per_sample="passes_per_sample"),
    ),
    StatedClaim(
        number=21,
        sentence="ring: PCIe above 20,000 MB/s in more than 80 % of samples, for 10 s or more",
        measured="the share of samples above, during passes",
        unit="%",
        reads=of(
            FLAT, rates="samples_mbps", seconds="metrics.elapsed_seconds", failures="failures", device="gpu_info.device"
        ),
        judge=verdicts.flatline,
        **ON_A_GPU,
    ),
    StatedClaim(
        number=22,
        sentence="pinned host-to-device copies above 22 GB/s as a precondition",
        measured="plain copies to the device, measured once in each run",
        unit="GB/s",
        reads=OF_LINKS,
        judge=verdicts.pinned,
        **ON_A_GPU,
    ),
    StatedClaim(
        number=23,
        sentence="an agent survives 30 s idle without OOM, its text coherent, swap and restore in the log",
        measured="bits of the text, and the agent's evictions and restores",
        unit="share",
        reads=of(SLEEP, equal="text_equal", out="metrics.swaps_detected", back="metrics.restores_detected"),
        judge=verdicts.sleeper,
        shows=of(SLEEP, seconds="sleep_duration_seconds"),
    ),
    StatedClaim(
        number=24,
        sentence="semantic scheduling (experiment 1): 50 and 80 agents that think and use tools",
        measured="first token after a pause, hinted over least recently used, p99; every agent's bits against alone",
        unit="times",
        reads=of(AGENTS, agents="agents", comparisons="comparisons"),
        judge=verdicts.agents,
        told_by="a GPU, and six repetitions (repetitions=6)",
    ),
    StatedClaim(
        number=25,
        sentence="virtual memory (experiment 2): models larger than the card",
        measured="the speed of a streamed token, of what copying and computing at once attain; logits",
        unit="times",
        reads=of(
            STREAMING,
            tokens="models[].of_both_at_once.token",
            logits="models[].logits.repetitions_passed[]",
            bar="config.least_of_both",
        ),
        judge=verdicts.streaming,
        told_by=GPU,
    ),
    StatedClaim(
        number=26,
        sentence="slab pre-allocated 72 GB, weights 27 GB, KV 1.3 GB a session explain 41 GB",
        measured="the slab before anything ran, as a share of its limit; every line of the breakdown is read",
        unit="%",
        reads=of(TWICE, slab="memory_breakdown.vmu_slab_preallocated_gb", limit="memory_breakdown.slab_limit_gb"),
        judge=verdicts.preallocated,
    ),
    StatedClaim(
        number=27,
        sentence="vLLM cannot pause; it can only read",
        measured="what vLLM's own interface does",
        unit="share",
        reads=of(VLLM, stops="conclusion.supports_layer_breakpoints", initialized="vllm_initialized"),
        judge=verdicts.vllm,
        needs="a GPU with vLLM",
        met=verdicts.vllm_ran,
    ),
    StatedClaim(
        number=28,
        sentence="clients can be phones and laptops",
        measured="seconds of a stop and of the hidden state at its last position, over a line of 50 Mbit/s and 20 ms",
        unit="s",
        reads=of(W, seconds="slow_line.seconds"),
        judge=verdicts.slow_line,
        shows=of(W, bytes="slow_line.bytes", all_positions_seconds="slow_line.seconds_of_all_positions"),
    ),
    StatedClaim(
        number=29,
        sentence="larger sequences (1,024 to 2,048), batch processing, A100 and H100 alike",
        measured="the bits of resumed runs on each of the cards",
        unit="share",
        reads=of(W + TOKENS, equal="bitwise_equal"),
        judge=verdicts.both_cards,
        told_by="an A100 and an H100",
        shows=of(W, device="device"),
    ),
)
CLAIMS: Final = tuple(replace(claim, sizes=SIZES.get(claim.number, ())) for claim in STATED)
