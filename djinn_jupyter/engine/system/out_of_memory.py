"""The errors of PyTorch that say that memory ran out."""

from __future__ import annotations

from typing import Final

import torch

_SAID: Final = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """True for CUDA's exception class, and for messages without a class: of the CPU allocator, and of libraries that
    find no room for a workspace of their own."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _SAID)
