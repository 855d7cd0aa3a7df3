"""Host memory that a GPU copies from and to at full speed: pages of its own, registered with CUDA while they exist.

What CUDA asks for, by its documentation and by what befell others: a page is registered once, so nothing else lies in
it; it is unregistered before it goes, or copies to whatever is mapped there next land in memory that nobody has; one
copy stays within one registration, or outside of all.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.system.huge_pages import mapped

PIECE_MOST: Final = 64 << 30  # bytes; cudaHostRegister has refused larger pieces


class _Registered(mmap.mmap):
    """A mapping with its registrations; these end, and then it, when the last tensor of it is gone."""

    runtime: Any = None
    addresses: tuple[int, ...] = ()

    def unregister(self) -> None:
        for address in self.addresses:
            self.runtime.cudaHostUnregister(address)
        self.addresses = ()

    def __del__(self) -> None:
        self.unregister()


def pinned(nbytes: int) -> Tensor:
    """`uint8[nbytes]`, beginning at a page. Raises OSError, and MemoryError where CUDA refuses; nothing of it is
    registered then."""
    memory, mapping = mapped(nbytes, _Registered)
    mapping.runtime = torch.cuda.cudart()
    for piece in cut(0, nbytes):
        address, size = memory.data_ptr() + piece.start, piece.stop - piece.start
        code = int(mapping.runtime.cudaHostRegister(address, size, 0))
        if code != 0:
            mapping.unregister()
            _hear_it_again()
            raise MemoryError(f"cudaHostRegister of {size / 2**20:.1f} MiB was refused with code {code}")
        mapping.addresses += (address,)
    return memory


def cut(start: int, nbytes: int) -> Iterator[slice]:
    """The bytes [start, start + nbytes) of pinned memory, in pieces that one copy may be of."""
    end = start + nbytes
    while start < end:
        stop = min(end, (start // PIECE_MOST + 1) * PIECE_MOST)
        yield slice(start, stop)
        start = stop


def _hear_it_again() -> None:
    """CUDA reports a refusal once more, as the failure of the next kernel that this thread starts: here, of this."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except RuntimeError:
        pass
