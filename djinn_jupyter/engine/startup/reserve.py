"""The bytes of a GPU that stay free beside weights and pages, measured by a pass before the pages have their limit."""

from __future__ import annotations

from typing import Any, Final

import torch

from djinn_jupyter.engine.model.discovery.recording import spread_tokens, ways_to_keep_last
from djinn_jupyter.engine.startup.describe import position_limit
from djinn_jupyter.engine.system.device_limit import free_on
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.system.repeatable import leave_out_cudnn_attention

MEASURED_POSITIONS: Final = 8192  # at most: what a pass takes grows with its length, the time to measure it too
LARGEST_SHARE: Final = 4  # a quarter of what is free at most, so that long contexts leave pages as well


def longest_prompt(model: Any) -> int:
    """Return the positions of the longest prompt of the model, or those that are measured where it has no limit."""
    return position_limit(model.config.get_text_config()) or MEASURED_POSITIONS


@torch.inference_mode()
def bytes_of_a_pass(model: Any, device: torch.device) -> int:
    """Return the bytes that CUDA's allocator needs at most in a pass over the longest prompt, beside weights and what
    is kept. It loads the kernels and workspaces of a pass, which are the driver's bytes from then on. Raises
    torch.OutOfMemoryError."""
    leave_out_cudnn_attention()  # as in every pass to come
    longest = longest_prompt(model)
    measured = min(longest, MEASURED_POSITIONS)
    for length in (1, measured):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_reserved(device)
        model(input_ids=spread_tokens(model, length)[None], use_cache=False, **ways_to_keep_last(model)[0])
        torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_reserved(device) - before
    return -(-taken * longest // measured)


def pages_beside_a_pass(model: Any, device: torch.device, card_memory: int | None) -> tuple[int, int]:
    """Return the bytes for pages on a GPU whose weights are in place, and the reserve beside them: what a pass takes,
    but no more than LARGEST_SHARE of what is free, which also holds where a pass so long does not fit."""
    taken = None
    try:
        taken = bytes_of_a_pass(model, device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # here, where no error holds the pass's tensors
    free = room_on(device, card_memory)
    most = free // LARGEST_SHARE
    reserve = most if taken is None else min(taken, most)
    return free - reserve, reserve


def room_on(device: torch.device, card_memory: int | None) -> int:
    """Return the bytes that this process can still take of a GPU: what the driver has free on the card, and with an
    imposed one no more than the allocator was allowed."""
    free = free_on(device, card_memory)
    if card_memory is None:
        return free
    total = torch.cuda.mem_get_info(device)[1]
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free, max(0, allowed - torch.cuda.memory_reserved(device)))
