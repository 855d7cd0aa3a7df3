"""Host memory that a GPU copies from and to at full speed: its own pages, registered with CUDA while they exist.

CUDA requires, by its documentation and by others' failures: a page is registered once, so nothing else lies in it;
it is unregistered before it is unmapped, or copies to the next mapping at that address land in memory that no process
has; one copy stays within one registration, or outside all of them.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.system.huge_pages import mapped, pageable

log = logging.getLogger(__name__)
PIECE_MOST: Final = 64 << 30  # bytes; cudaHostRegister has refused larger pieces


class _Registered(mmap.mmap):
    """A mapping with its CUDA registrations. When its last tensor is freed, the registrations end, then the mapping."""

    runtime: Any = None
    addresses: tuple[int, ...] = ()

    def unregister(self) -> None:
        for address in self.addresses:
            self.runtime.cudaHostUnregister(address)
        self.addresses = ()

    def __del__(self) -> None:
        self.unregister()


def pinned(nbytes: int) -> Tensor:
    """Return `uint8[nbytes]`, page-aligned and registered. Raises OSError, and MemoryError where CUDA refuses; after an
    error nothing stays registered."""
    memory, mapping = mapped(nbytes, _Registered)
    mapping.runtime = torch.cuda.cudart()
    for piece in cut(0, nbytes):
        address, size = memory.data_ptr() + piece.start, piece.stop - piece.start
        code = int(mapping.runtime.cudaHostRegister(address, size, 0))
        if code != 0:
            mapping.unregister()
            _hear_it_again()
            raise MemoryError(f"cudaHostRegister of {spell_bytes(size)} was refused with code {code}")
        mapping.addresses += (address,)
    return memory


def pinned_if_allowed(nbytes: int) -> Tensor:
    """Return the same; where the system refuses to lock so much memory, all of it stays pageable: copies from and to it
    are slower but equally correct. Raises OSError."""
    try:
        return pinned(nbytes)
    except MemoryError as refused:
        log.warning("Host memory is not pinned, and copies are slower: %s", str(refused))
        return pageable(nbytes)


def cut(start: int, nbytes: int) -> Iterator[slice]:
    """Split the bytes [start, start + nbytes) of pinned memory into pieces that one copy may move."""
    end = start + nbytes
    while start < end:
        stop = min(end, (start // PIECE_MOST + 1) * PIECE_MOST)
        yield slice(start, stop)
        start = stop


def _hear_it_again() -> None:
    """Start a throwaway kernel: CUDA reports a refusal again as the failure of this thread's next kernel."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except RuntimeError:
        pass
