"""Several weights in one flat run of bytes, so that one copy moves all of them.

On the CPU a weight keeps its address modulo 512: matrix products take other code paths at other alignments, with other
last bits (seen with MKL, where weights are mapped from files at multiples of 8 or 16). On CUDA every weight begins at a
multiple of 512, as its allocator would place it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.parameters import Weight

ALIGNMENT = 512
HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWeight:
    """The location of one weight in a flat run."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of a flat run of `nbytes`, in the order of their weights."""

    parts: tuple[FlatWeight, ...]
    nbytes: int

    @classmethod
    def of(cls, weights: Sequence[Weight], device: torch.device = HOST) -> Layout:
        """Return the layout that contiguous weights on the host will have on `device`."""
        parts, end = [], 0
        for weight in weights:
            tensor = weight.tensor
            phase = tensor.data_ptr() % ALIGNMENT if device.type == "cpu" else 0
            if phase % tensor.element_size():
                phase = 0  # torch makes no views at such an address
            offset = -(-(end - phase) // ALIGNMENT) * ALIGNMENT + phase
            parts.append(FlatWeight(offset=offset, nbytes=weight.nbytes, dtype=tensor.dtype, shape=tensor.shape))
            end = offset + weight.nbytes
        return cls(parts=tuple(parts), nbytes=end)

    def views(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """Return the weights as views of `buffer`, a `uint8[>= nbytes]`."""
        with torch.inference_mode(False):
            return tuple(
                buffer[part.offset : part.offset + part.nbytes].view(part.dtype).view(part.shape) for part in self.parts
            )


def flat_buffer(nbytes: int, device: torch.device) -> Tensor:
    """Return an undefined `uint8[nbytes]`, beginning at a multiple of ALIGNMENT; it may be written in any mode."""
    with torch.inference_mode(False):
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        return raw.narrow(0, -raw.data_ptr() % ALIGNMENT, nbytes)


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor as `uint8[nbytes]`, sharing its memory."""
    with torch.inference_mode(False):
        return tensor.detach().reshape(-1).view(torch.uint8)


def return_freed(device: torch.device) -> None:
    """Return freed memory to the system: torch's CUDA allocator and glibc's keep it otherwise."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
