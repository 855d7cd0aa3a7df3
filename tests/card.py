"""A stand-in of CUDA's allocator and driver: the tensors of the CPU are those of a card, in segments as CUDA's."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SEGMENT = 1 << 10  # CUDA's segments are of 2 MiB; tests have tiny models


class Card(TorchDispatchMode):
    """A card of `total` bytes, of which a context takes `context` and the kernels of the first pass `kernels`. As a
    context manager it counts the tensors that are made within; freed ones stay reserved until `empty_cache`."""

    def __init__(self, total: int, *, context: int = 0, kernels: int = 0) -> None:
        super().__init__()
        self.total, self.context, self.kernels = total, context, kernels
        self.fraction = 1.0
        self.live = self.reserved = self.peak = self.loaded = 0
        self._tensors: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.loaded = self.kernels
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return made

    def hold(self, nbytes: int) -> None:
        """Count bytes that stay: weights."""
        self.live += nbytes
        self._grow()

    @property
    def in_use(self) -> int:
        return self.context + self.loaded + self.reserved

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def impose(fraction: float, device: Any) -> None:
            self.fraction = fraction

        for name, double in {
            "mem_get_info": lambda device: (self.total - self.in_use, self.total),
            "memory_reserved": lambda device: self.reserved,
            "max_memory_reserved": lambda device: self.peak,
            "reset_peak_memory_stats": lambda device: setattr(self, "peak", self.reserved),
            "empty_cache": self._empty,
            "synchronize": lambda device: None,
            "set_per_process_memory_fraction": impose,
            "get_per_process_memory_fraction": lambda device: self.fraction,
        }.items():
            monkeypatch.setattr(torch.cuda, name, double)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), -(-storage.nbytes() // SEGMENT) * SEGMENT
        if not self._tensors[place]:
            self.live += size
            self._grow()
        self._tensors[place] += 1
        weakref.finalize(tensor, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self._tensors[place] -= 1
        if not self._tensors[place]:
            self.live -= size

    def _grow(self) -> None:
        self.reserved = max(self.reserved, self.live)
        if self.reserved > self.fraction * self.total or self.in_use > self.total:
            self._empty()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.peak = max(self.peak, self.reserved)

    def _empty(self) -> None:
        self.reserved = self.live
