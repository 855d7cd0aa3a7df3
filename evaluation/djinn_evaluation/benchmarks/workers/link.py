"""Copies between host memory and the device by plain PyTorch: directions, streams, pinned or not; and plain reads and
writes of a file, the comparison for a move between tiers.

Every copy begins on an idle device and is over when the device has done it.
"""

from __future__ import annotations

import mmap
import os
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.weights import device_for, settle

Pair = tuple[Tensor, Tensor]
CHUNK = 4 << 20  # bytes of a read or a write


class Link:
    def __init__(self) -> None:
        self._streams: list[Any] = []

    def prepare(self, nbytes: int, threads: int, folder: str | None = None) -> dict[str, Any]:
        """Make buffers that have been touched: on the device, and pinned and not on the host, for each direction; and a
        file of that size in `folder`, where there is one."""
        torch.set_num_threads(threads)
        self._device = device_for(None)
        pins = self._device.type == "cuda"
        self._source = torch.randint(256, (nbytes,), dtype=torch.uint8)
        self._host = {True: self._source.pin_memory() if pins else self._source.clone(), False: self._source.clone()}
        self._back = {pinned: torch.zeros_like(buffer) for pinned, buffer in self._host.items()}
        if pins:
            self._back[True] = self._back[True].pin_memory()
        self._on_device = {name: self._source.to(self._device, copy=True) for name in ("in", "out")}
        return {"device": str(self._device)} | ({} if folder is None else self._filled(folder, nbytes))

    def _filled(self, folder: str, nbytes: int) -> dict[str, Any]:
        self._file = self._opened(folder)
        self._chunk = mmap.mmap(-1, CHUNK)
        self._chunk[:] = os.urandom(CHUNK)
        for at in range(0, nbytes, CHUNK):
            os.pwrite(self._file, self._chunk, at)
        os.fsync(self._file)
        return {"direct": self._direct}

    def _opened(self, folder: str) -> int:
        path = os.path.join(folder, f"plain-{os.getpid()}")
        self._direct = True
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            self._direct = False
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.unlink(path)
        return file

    def copy(self, directions: list[str], streams: int, pinned: bool) -> dict[str, Any]:
        """Copy in all directions at once, each in as many pieces as it has streams."""
        pairs = [pair for name in directions for pair in self._pieces(name, streams, pinned)]
        settle(self._device)
        begun = perf_counter()
        for number, (source, target) in enumerate(pairs):
            with self._stream(number):
                target.copy_(source, non_blocking=True)
        return {"seconds": self._since(begun)}

    def copy_to_new_memory(self) -> dict[str, Any]:
        """Copy from the host into memory of the device that has to be allocated first."""
        begun = perf_counter()
        fresh = torch.empty_like(self._on_device["in"]).copy_(self._host[True])
        seconds = self._since(begun)
        del fresh
        return {"seconds": seconds}

    def read(self) -> dict[str, Any]:
        """Read the file, chunk by chunk, past the page cache where the file system allows it."""
        begun = perf_counter()
        for at in range(0, self._source.nbytes, CHUNK):
            os.preadv(self._file, [self._chunk], at)
        return {"seconds": perf_counter() - begun}

    def write(self) -> dict[str, Any]:
        begun = perf_counter()
        for at in range(0, self._source.nbytes, CHUNK):
            os.pwrite(self._file, self._chunk, at)
        return {"seconds": perf_counter() - begun}

    def _since(self, begun: float) -> float:
        settle(self._device)
        return perf_counter() - begun

    def compare(self) -> dict[str, Any]:
        """Return `equal`: true where the bytes on the device, and those copied back from it, equal the source."""
        arrived = torch.equal(self._on_device["in"].cpu(), self._source)
        returned = all(torch.equal(buffer, self._source) for buffer in self._back.values())
        return {"equal": arrived and returned}

    def _pieces(self, direction: str, count: int, pinned: bool) -> list[Pair]:
        inward = direction == "in"
        source, target = (
            (self._host[pinned], self._on_device["in"]) if inward else (self._on_device["out"], self._back[pinned])
        )
        return list(zip(source.chunk(count), target.chunk(count), strict=True))

    def _stream(self, number: int) -> Any:
        """Return the side stream of a piece, made once; the CPU has none."""
        if self._device.type != "cuda":
            return nullcontext()
        while len(self._streams) <= number:
            self._streams.append(torch.cuda.Stream(self._device))
        return torch.cuda.stream(self._streams[number])


if __name__ == "__main__":
    link = Link()
    serve({name: getattr(link, name) for name in "prepare copy copy_to_new_memory read write compare".split()})
