"""The result files that claims read, and the fields that several of them read."""

from __future__ import annotations

from typing import Final

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
