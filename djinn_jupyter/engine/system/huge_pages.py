"""Memory of its own mapping, which the system has back the moment its tensor goes. Knows nothing of what lies there.

In huge pages where the system has them: 76 MB of small ones took 39 ms to be touched first and 5 to be given back,
of huge ones 14 (a plain copy of the bytes) and 0.2. Measured on Linux 6.18, one core of an EPYC.
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
    """`uint8[nbytes]`, page-aligned; in huge pages as far as whole ones fit. Raises OSError."""
    return mapped(nbytes, mmap.mmap)[0]


def mapped(nbytes: int, kind: type[Mapping]) -> tuple[Tensor, Mapping]:
    """The same, with its mapping, of which the tensor is made and which lives as long."""
    if nbytes < HUGE_BYTES:
        mapping = kind(-1, nbytes, flags=_PRIVATE)
        return _tensor(mapping, 0, nbytes), mapping
    mapping = kind(-1, nbytes + HUGE_BYTES, flags=_PRIVATE)  # what is never touched takes no memory
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
