"""Plain copies of bytes by PyTorch between device and host, and plain reads and writes of a file: the comparison for a
move between tiers. On the CPU the device is main memory too."""

from __future__ import annotations

import mmap
import os
from time import perf_counter
from typing import Any

import torch

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.weights import device_for, settle

CHUNK = 4 << 20


class Copying:
    def prepare(self, nbytes: int, folder: str | None, threads: int) -> dict[str, Any]:
        """Make a buffer on the device and one on the host that have been touched, a file of that size in `folder`."""
        torch.set_num_threads(threads)
        self._device = device_for(None)
        self._host = torch.randint(256, (nbytes,), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        self._near = self._host.to(self._device, copy=True)
        return {} if folder is None else self._filled(folder, nbytes)

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

    def copy(self) -> dict[str, Any]:
        """Copy from the device to host memory that was in use before."""
        begun = perf_counter()
        self._host.copy_(self._near)
        return {"seconds": self._since(begun)}

    def copy_back(self) -> dict[str, Any]:
        """Copy from the host to memory of the device that was in use before."""
        begun = perf_counter()
        self._near.copy_(self._host)
        return {"seconds": self._since(begun)}

    def copy_to_new_memory(self) -> dict[str, Any]:
        """Copy from the host into memory of the device that has to be allocated first."""
        begun = perf_counter()
        fresh = torch.empty_like(self._near).copy_(self._host)
        seconds = self._since(begun)
        del fresh
        return {"seconds": seconds}

    def _since(self, begun: float) -> float:
        settle(self._device)
        return perf_counter() - begun

    def read(self) -> dict[str, Any]:
        """Read the file, chunk by chunk, past the page cache where the file system allows it."""
        begun = perf_counter()
        for at in range(0, self._host.nbytes, CHUNK):
            os.preadv(self._file, [self._chunk], at)
        return {"seconds": perf_counter() - begun}

    def write(self) -> dict[str, Any]:
        begun = perf_counter()
        for at in range(0, self._host.nbytes, CHUNK):
            os.pwrite(self._file, self._chunk, at)
        return {"seconds": perf_counter() - begun}


if __name__ == "__main__":
    copying = Copying()
    serve({name: getattr(copying, name) for name in "prepare copy copy_back copy_to_new_memory read write".split()})
