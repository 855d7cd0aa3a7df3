"""The store of host weights: where loading, naps and streaming all take a weight's bytes from.

A weight on the host is its bytes as loading left them (a piece of a safetensors file, read through the page cache and
part of no process's own memory) or a place in a flat buffer, which is pinned where a CUDA device reads from it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.flat import HOST, Layout, raw_bytes
from djinn_jupyter.engine.memory.weights.parameters import Weight
from djinn_jupyter.engine.system.huge_pages import pageable
from djinn_jupyter.engine.system.pinned import cut, pinned
from djinn_jupyter.machine import main_memory

HEADROOM = 9 / 10  # of what is free on the host

log = logging.getLogger(__name__)


class HostRun:
    """The bytes of some weights on the host, in the layout that a device's flat buffer has. Never written again.

    `pieces` are one `uint8` tensor for each part, or a single one for all of them, gaps included.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Tensor]) -> None:
        self.layout = layout
        self.pieces = tuple(pieces)
        offsets = (0,) if len(self.pieces) == 1 else tuple(part.offset for part in layout.parts)
        self._offsets, self._sources = _joined(offsets, self.pieces)

    @classmethod
    def as_loaded(cls, weights: Sequence[Weight], device: torch.device = HOST) -> HostRun:
        """The weights where they are, in host memory or mapped from their files; nothing is copied. They are for
        `device`."""
        return cls(Layout.of(weights, device), [raw_bytes(weight.tensor) for weight in weights])

    @classmethod
    def pinned(cls, weights: Sequence[Weight], device: torch.device) -> HostRun:
        """A flat pinned buffer of its own, filled weight by weight, from the host or from the CUDA device it is
        for."""
        layout = Layout.of(weights, device)
        buffer = pinned_buffer(layout.nbytes)
        for part, weight in zip(layout.parts, weights, strict=True):
            for piece in cut(part.offset, part.nbytes):
                buffer[piece].copy_(raw_bytes(weight.tensor)[piece.start - part.offset : piece.stop - part.offset])
        return cls(layout, [buffer])

    @property
    def moved(self) -> int:
        """Bytes that cross when it is copied."""
        return sum(piece.numel() for piece in self.pieces)

    def transfers(self, target: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The copies, as (source, target) of equal sizes, that fill the flat buffer `target`. What lies side by side
        in both goes as one, as far as pinned memory lets it."""
        return [
            (source[piece.start - offset : piece.stop - offset], target[piece])
            for offset, source in zip(self._offsets, self._sources, strict=True)
            for piece in cut(offset, source.numel())
        ]


def _joined(offsets: Sequence[int], pieces: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Pieces for these offsets, those that follow on each other in both places made one. Nothing is copied, so the
    pieces have to be kept."""
    begins: list[int] = []
    sources: list[Tensor] = []
    for offset, piece in zip(offsets, pieces, strict=True):
        before = sources[-1] if sources else None
        if before is not None and begins[-1] + before.numel() == offset and _follows(before, piece):
            sources[-1] = _bytes_at(before.data_ptr(), before.numel() + piece.numel())
        else:
            begins.append(offset)
            sources.append(piece)
    return tuple(begins), tuple(sources)


def _follows(before: Tensor, piece: Tensor) -> bool:
    return before.data_ptr() + before.numel() == piece.data_ptr()


def _bytes_at(address: int, nbytes: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def has_room_for(nbytes: int) -> bool:
    """Whether the host may give away so much for good."""
    return nbytes < HEADROOM * main_memory().available


def pinned_buffer(nbytes: int) -> Tensor:
    """A flat host buffer that the device reads at full speed. Where the system refuses to lock so much memory it stays
    as it is, all of it: copies from it are slower, and as right."""
    try:
        return pinned(nbytes)
    except MemoryError as refused:
        log.warning("Weights are copied from memory that is not pinned: %s", str(refused))
        return pageable(nbytes)
