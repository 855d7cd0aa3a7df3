"""Greedy `generate` of transformers with the time of each token, for every worker that decodes by it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from djinn_evaluation.baselines.weights import greedy


class Timestamps(BaseStreamer):  # type: ignore[misc,unused-ignore]
    """The times at which `generate` had each token; the first is the prompt's."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None: ...


def decoded(
    model: Any, tokens: list[int], new: int, device: torch.device, stamps: Timestamps, cache: Any = None
) -> dict[str, Any]:
    """Generate; return the new tokens, `seconds` of all, `decoding` from the first new token to the last."""
    made, seconds = greedy(model, tokens, new, device, stamps, cache)
    return {"seconds": seconds, "decoding": stamps.times[-1] - stamps.times[1], "tokens": made}


class Decoding:
    """A side with a whole model on one device, whatever keeps its weights elsewhere."""

    model: Any
    device: torch.device

    @torch.inference_mode()
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily with a cache; return tokens, seconds, and those from the first new token to the last."""
        return decoded(self.model, tokens, new, self.device, Timestamps())
