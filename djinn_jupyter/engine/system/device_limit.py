"""The GPU that is this process's, also where a smaller one is imposed than there is. Knows nothing of models.

On the CPU there is no allocator to hold to it: there the books are, which bound weights and pages by the same amount.
"""

from __future__ import annotations

import torch

from djinn_jupyter.engine.system.amounts import amount
from djinn_jupyter.errors import UsageError


def make_current(device: torch.device) -> None:
    """What this thread asks of CUDA without naming a device goes to this one from now on: to register memory, to start
    kernels that are not torch's. On another GPU it would take half a gigabyte, or fail."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def impose(card_memory: int | None, device: torch.device) -> None:
    """Hold this process to what a GPU of so many bytes would leave it. To be called before anything is allocated."""
    if card_memory is None or device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(fraction_of(card_memory, total=total, taken=total - free), device)


def fraction_of(card_memory: int, *, total: int, taken: int) -> float:
    """The share of the real card's `total` that is this process's, so that with what is `taken` already, by others and
    by its own context, the whole card holds at most `card_memory`. All in bytes. UsageError where nothing is left."""
    if card_memory > total:
        raise UsageError(f"A card of {amount(card_memory)} cannot be imposed: the one there is has {amount(total)}.")
    if card_memory <= taken:
        raise UsageError(
            f"A card of {amount(card_memory)} would be full: {amount(taken)} of the one there is are taken; impose a "
            "larger one, or end what else runs on it."
        )
    return (card_memory - taken) / total


def free_on(device: torch.device, card_memory: int | None) -> int:
    """Bytes that are free on a GPU, or would be if it were as small as the imposed one."""
    free, total = torch.cuda.mem_get_info(device)
    return free if card_memory is None else max(0, min(free, card_memory - (total - free)))
