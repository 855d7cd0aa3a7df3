"""The current GPU of this process, and a limit that makes it act as a smaller one. Knows nothing of models.

On the CPU no allocator enforces the limit; there the accounting bounds weights and pages by the same amount.
"""

from __future__ import annotations

from typing import Final

import torch

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError

LOADED_LATER: Final = 512 << 20  # bytes of kernels and libraries that CUDA loads at first use; no allocator counts them


def make_current(device: torch.device) -> None:
    """Make `device` this thread's current CUDA device, for calls that name none: registering memory, starting kernels
    that are not torch's. On another GPU such a call would take half a gigabyte, or fail."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def impose(card_memory: int | None, device: torch.device) -> None:
    """Limit this process to the memory that a GPU of `card_memory` bytes would leave it. Call before any allocation."""
    if card_memory is None or device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    taken = total - free + LOADED_LATER
    torch.cuda.set_per_process_memory_fraction(fraction_of(card_memory, total=total, taken=taken), device)


def fraction_of(card_memory: int, *, total: int, taken: int) -> float:
    """Return the fraction of the real card's `total` that this process may use, so that with the bytes already `taken`
    (by other processes and its own context) the card holds at most `card_memory`. All in bytes. Raises UsageError where
    `card_memory` exceeds `total` or leaves nothing."""
    if card_memory > total:
        raise UsageError(
            f"A card of {spell_bytes(card_memory)} cannot be imposed: the one there is has {spell_bytes(total)}."
        )
    if card_memory <= taken:
        raise UsageError(
            f"A card of {spell_bytes(card_memory)} would be full: {spell_bytes(taken)} of the one there is are taken; "
            "impose a larger one, or end what else runs on it."
        )
    return (card_memory - taken) / total


def free_on(device: torch.device, card_memory: int | None) -> int:
    """Return the bytes free on a GPU, or that would be free if it were as small as `card_memory`."""
    free, total = torch.cuda.mem_get_info(device)
    return free if card_memory is None else max(0, min(free, card_memory - (total - free)))
