"""The link between host and device by plain copies: the fastest each way, of several sizes.

Without a GPU both are main memory. There small copies stay in the processor's caches, as those of a small model do, and
some threads copy together; the fastest is what no honest copy exceeds.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.copies import WAYS, Way, by_torch, seconds_of

SIZES = (1 << 18, 1 << 20, 1 << 23, 1 << 26)  # bytes
ROUNDS, SECONDS = 5, 0.02  # of each size at least; a round more while these seconds last


def measure(device: str) -> dict[str, Any]:
    """Return bytes and least seconds of a copy of each size in each way, `in` to the device and `out` of it; on the CPU
    both are the same copies."""
    place = torch.device(device)
    ways = WAYS if place.type == "cpu" else (by_torch,)
    counts = {1, torch.get_num_threads()} if place.type == "cpu" else {torch.get_num_threads()}
    found: dict[str, list[tuple[int, float]]] = {"in": [], "out": []}
    before = torch.get_num_threads()
    try:
        for count in counts:
            torch.set_num_threads(count)
            for size in SIZES:
                for way, (source, target) in _sides(place, size).items():
                    found[way] += [(size, _least(source, target, by)) for by in ways]
    finally:
        torch.set_num_threads(before)
    return {"copies": {"in": found["in"], "out": found["out"] or found["in"]}}


def _sides(device: torch.device, size: int) -> dict[str, tuple[Tensor, Tensor]]:
    host = torch.ones(size, dtype=torch.uint8)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        host = host.pin_memory()
    return {"in": (host, there), "out": (there, host)} if device.type == "cuda" else {"in": (host, there)}


def _least(source: Tensor, target: Tensor, way: Way) -> float:
    taken: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(taken) < ROUNDS or time.perf_counter() < until:
        taken.append(seconds_of(source, target, way))
    return min(taken)


if __name__ == "__main__":
    serve({"measure": measure})
