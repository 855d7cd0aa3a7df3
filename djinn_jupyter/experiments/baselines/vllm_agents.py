"""vLLM beside the agents: its preemption and offload keep requests, not sessions that pause."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def vllm_beside() -> dict[str, Any]:
    """Return the side of vLLM, or the reason why it was not run."""
    if find_spec("vllm") is None:
        return {"status": "not_run", "reason": "vLLM is not installed here (pip install vllm, on a machine with a GPU)"}
    return {"status": "not_run", "reason": "vLLM is installed, but this experiment does not drive it yet"}
