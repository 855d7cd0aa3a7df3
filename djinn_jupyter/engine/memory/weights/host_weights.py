"""Weights in host memory: the source of a weight's bytes for loading, sleep and streaming.

A weight on the host is either its bytes as loaded (a piece of a safetensors file, read through the page cache and not
part of any process's own memory) or a place in a flat buffer, which is pinned where a CUDA device reads from it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.flat import HOST, FlatWeight, Layout, raw_bytes
from djinn_jupyter.engine.memory.weights.parameters import Weight
from djinn_jupyter.engine.system.pinned import cut, pinned_if_allowed
from djinn_jupyter.machine import main_memory

HEADROOM = 9 / 10  # of the host's free memory


class HostRun:
    """The bytes of some weights on the host, in the layout of a device's flat buffer. Read-only once made.

    `pieces` is one `uint8` tensor for each part, or a single one for all of them, gaps included.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Tensor]) -> None:
        self.layout = layout
        self.pieces = tuple(pieces)
        offsets = (0,) if len(self.pieces) == 1 else tuple(part.offset for part in layout.parts)
        self._offsets, self._sources = _joined(offsets, self.pieces)

    @classmethod
    def as_loaded(cls, weights: Sequence[Weight], device: torch.device = HOST) -> HostRun:
        """Return a run of the weights in place, in host memory or mapped from their files, without a copy, laid out for
        `device`."""
        return cls(Layout.of(weights, device), [raw_bytes(weight.tensor) for weight in weights])

    @classmethod
    def pinned(cls, weights: Sequence[Weight], device: torch.device) -> HostRun:
        """Return a run in its own flat pinned buffer, filled weight by weight, from the host or from the CUDA device
        that it is for."""
        layout = Layout.of(weights, device)
        buffer = pinned_if_allowed(layout.nbytes)
        for part, weight in zip(layout.parts, weights, strict=True):
            for piece in cut(part.offset, part.nbytes):
                buffer[piece].copy_(raw_bytes(weight.tensor)[piece.start - part.offset : piece.stop - part.offset])
        return cls(layout, [buffer])

    def views(self) -> tuple[Tensor, ...]:
        """Return the weights on the host, in place."""
        if len(self.pieces) == 1:
            only = self.pieces[0]
            whole = len(self.layout.parts) == 1 and only.numel() == self.layout.parts[0].nbytes
            return (_shaped(only, self.layout.parts[0]),) if whole else self.layout.views(only)
        return tuple(_shaped(piece, part) for piece, part in zip(self.pieces, self.layout.parts, strict=True))

    @property
    def moved(self) -> int:
        """Bytes that one copy of the run moves."""
        return sum(piece.numel() for piece in self.pieces)

    def transfers(self, target: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the copies (source, target), of equal sizes, that fill the flat buffer `target`. Bytes adjacent on
        both sides are one copy, except across pieces of pinned memory."""
        return [
            (source[piece.start - offset : piece.stop - offset], target[piece])
            for offset, source in zip(self._offsets, self._sources, strict=True)
            for piece in cut(offset, source.numel())
        ]


def _shaped(piece: Tensor, part: FlatWeight) -> Tensor:
    with torch.inference_mode(False):
        return piece.view(part.dtype).view(part.shape)


def _joined(offsets: Sequence[int], pieces: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Return offsets and pieces, merging pieces that are adjacent on both sides. Nothing is copied, so the caller must
    keep the given pieces."""
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
    """True if the host can spare `nbytes` permanently."""
    return nbytes < HEADROOM * main_memory().available
