"""Stand-ins for the two things that are slow and fail: the thread that copies, and the file."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import torch

from djinn_jupyter.engine.memory.offload.mover import Moved, MoverBatch, perform
from djinn_jupyter.errors import StorageFailed
from tests.device import DEVICE


class HeldMover:
    """Copies when told to, in any order, or fails. Nothing moves by itself."""

    def __init__(self, post: Callable[[Moved], None]) -> None:
        self.post = post
        self.batches: list[MoverBatch] = []
        self._stream = torch.cuda.Stream(DEVICE) if DEVICE.type == "cuda" else None

    def submit(self, batch: MoverBatch) -> None:
        self.batches.append(batch)

    def go_on(self, which: int = 0, *, fail: bool = False) -> None:
        """End one of the batches under way."""
        batch = self.batches.pop(which % len(self.batches))
        self.post(
            Moved(batch=batch, error=StorageFailed("The copy was made to fail.")) if fail else self._perform(batch)
        )

    def _perform(self, batch: MoverBatch) -> Moved:
        """Perform the copies as the mover's thread does; on CUDA they are over when this returns."""
        return perform(batch, *((self._stream,) if batch.ready else ()))

    def finish(self, chance: random.Random | None = None) -> None:
        while self.batches:
            self.go_on(chance.randrange(len(self.batches)) if chance else 0)

    def stop(self) -> None:
        self.finish()


class FileInMemory:
    """`room` bytes and no more; faults happen when they are asked for."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.bytes = bytearray()
        self.short = self.full = self.spoiled = False
        self.synced = 0

    def resize(self, size: int) -> None:
        if size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.bytes = self.bytes[:size] + bytes(max(0, size - len(self.bytes)))

    def write(self, buffer: memoryview, offset: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = len(buffer) // 2 if self.short else len(buffer)
        assert offset + size <= len(self.bytes), "written beyond what was allocated"
        self.bytes[offset : offset + size] = buffer[:size]
        return size

    def read(self, buffer: memoryview, offset: int) -> int:
        size = len(buffer) // 2 if self.short else len(buffer)
        buffer[:size] = self.bytes[offset : offset + size]
        if self.spoiled:
            buffer[0] ^= 1
        return size

    def corrupt(self, at: int) -> None:
        self.bytes[at] ^= 0x40

    def sync(self) -> None:
        self.synced += 1

    def close(self) -> None: ...
