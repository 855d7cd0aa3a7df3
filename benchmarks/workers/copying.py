"""Plain copies of bytes by PyTorch, and plain reads and writes of a file: the comparison for a move between tiers."""

from __future__ import annotations

import mmap
import os
from time import perf_counter
from typing import Any

import torch

from djinn_jupyter.experiments.baselines.answering import serve

CHUNK = 4 << 20


class Copying:
    def prepare(self, nbytes: int, folder: str, threads: int) -> dict[str, Any]:
        """Make two buffers that have been touched, and a file of that size."""
        torch.set_num_threads(threads)
        self._source = torch.randint(256, (nbytes,), dtype=torch.uint8)
        self._target = self._source.clone()
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
        """Copy between buffers that were in use before."""
        begun = perf_counter()
        self._target.copy_(self._source)
        return {"seconds": perf_counter() - begun}

    def copy_to_new_memory(self) -> dict[str, Any]:
        """Copy into memory that the system has to allocate first."""
        begun = perf_counter()
        fresh = torch.empty_like(self._source).copy_(self._source)
        seconds = perf_counter() - begun
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


if __name__ == "__main__":
    copying = Copying()
    serve({name: getattr(copying, name) for name in "prepare copy copy_to_new_memory read write".split()})
