"""How fast bytes get from the host to where they are computed with, measured by copying some."""

from __future__ import annotations

import time

import torch

from djinn_jupyter.engine.memory.weights.flat import HOST, flat_buffer

ROUNDS = 4
MOST = 128 << 20  # more than a processor's caches hold: what was copied a moment ago would come out of these


def measure_link(device: torch.device, allowed: int) -> float:
    """Bytes a second of the best of a few rounds of copies, made as a carrier makes them: from half as much as the
    `allowed` memory at most, into a sixteenth of it. Of memory: a disk may be slower."""
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
