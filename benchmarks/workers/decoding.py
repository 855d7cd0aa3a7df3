"""Greedy `generate` of transformers with the time of each token, for every worker that decodes by it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer


class Timestamps(BaseStreamer):  # type: ignore[misc,unused-ignore]
    """When `generate` had each token; the first is the prompt's."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None: ...


def decoded(model: Any, tokens: list[int], new: int, stamps: Timestamps) -> dict[str, Any]:
    """The new tokens; `seconds` of all, `decoding` from the first new token to the last."""
    prompt = torch.tensor([tokens])
    begun = perf_counter()
    made = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, do_sample=False, streamer=stamps
    )
    seconds = perf_counter() - begun
    decoding = stamps.times[-1] - stamps.times[1]
    return {"seconds": seconds, "decoding": decoding, "tokens": made[0, len(tokens) :].tolist()}
