"""Measure the copy bandwidth between host memory and the memory that passes compute with."""

from __future__ import annotations

import time

import torch

from djinn_jupyter.engine.memory.weights.flat import HOST, flat_buffer

ROUNDS = 4
MOST = 128 << 20  # more than a processor's caches hold, so that a repeated copy is not read from them


def measure_link(device: torch.device, allowed: int) -> float:
    """Return bytes per second of the best of a few rounds of copies, made as a copy engine makes them: from a source of
    at most half of `allowed`, into a sixteenth of it. The source is memory; a disk may be slower."""
    cuda = device.type == "cuda"
    size = min(MOST, max(1 << 16, allowed // 2))
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True) if cuda else flat_buffer(size, HOST)
    target = flat_buffer(max(1 << 13, min(size, allowed // 16)), device)
    source.fill_(1)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for piece in source.split(target.numel()):
            if cuda:
                target[: piece.numel()].copy_(piece, non_blocking=True)
            else:
                target.numpy()[: piece.numel()] = piece.numpy()
        if cuda:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return size / min(seconds[1:])


def measure_return(device: torch.device, allowed: int) -> float:
    """Return bytes per second of the best of a few rounds of copies from a GPU to pinned host memory, as sessions leave
    it; of at most a sixteenth of `allowed`."""
    source = flat_buffer(max(1 << 13, min(MOST, allowed // 16)), device)
    target = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=True)
    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return source.numel() / min(seconds[1:])
