"""How fast bytes get from the host to where they are computed with, measured by copying some."""

from __future__ import annotations

import time

import torch

from djinn_jupyter.engine.weights.flat import HOST, flat_buffer

ROUNDS = 4


MOST = 64 << 20


def measure_link(device: torch.device, allowed: int) -> float:
    """Bytes a second of the best of a few copies, made as a carrier makes them, within an eighth of the `allowed`
    memory. Of memory: a disk may be slower."""
    cuda = device.type == "cuda"
    size = min(MOST, max(1, allowed // 16))
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True) if cuda else flat_buffer(size, HOST)
    target = flat_buffer(size, device)
    source.fill_(1)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        if cuda:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
        else:
            target.numpy()[:] = source.numpy()
        seconds.append(time.perf_counter() - begun)
    return size / min(seconds[1:])
