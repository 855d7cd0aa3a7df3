"""Tensors of a session that are not pages, as items of the tiers: whole storages, by identity. Knows no session.

A storage that leaves is emptied in place (`resize_(0)`) and filled again when it comes back, so every tensor and view
of it stays the object it was. Which storages belong to a session is for others to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.amounts import mebibytes
from djinn_jupyter.engine.system.books_broken import BooksBroken
from djinn_jupyter.errors import SlabFull


class Blob(Item):
    """One storage. Held weakly: it is gone when the last tensor of it is, and its identity is not given to another
    storage as long as this blob is there. What it has on the device, `counted` bytes, is drawn from the budget."""

    __slots__ = ("_budget", "_weak", "arriving", "away", "counted", "epoch")

    def __init__(self, storage: UntypedStorage, budget: Budget) -> None:
        super().__init__(storage.nbytes())
        self._weak, self._budget = StorageWeakRef(storage), budget
        self.away = self.arriving = False
        self.epoch: int | None = None
        self.counted = self.nbytes
        budget.record(self.counted)

    @property
    def identity(self) -> int:
        return int(self._weak.cdata)

    @property
    def expired(self) -> bool:
        return bool(self._weak.expired())

    @property
    def resident(self) -> bool:
        return not self.away and not self.arriving

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        """A tensor of the storage, which is away. Raises SlabFull, and BooksBroken for one that reaches beyond it."""
        reach = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if all(shape) else 0
        if min(offset, *shape, *strides, 0) < 0 or reach * dtype.itemsize > self.nbytes or not self.away:
            raise BooksBroken("A tensor was to be made of bytes that its storage does not have, or has already.")
        storage = self.storage()
        try:
            made = torch.empty(0, dtype=dtype, device=storage.device).set_(
                storage, offset, tuple(shape), tuple(strides)
            )
        except RuntimeError as error:
            raise SlabFull(f"The device refused {mebibytes(self.nbytes)} for a session's states: {error}") from error
        storage.resize_(0)  # set_ had made it long enough
        return made

    def storage(self) -> UntypedStorage:
        found: UntypedStorage | None = UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        if found is None:
            raise BooksBroken("A storage was to move that nobody holds any more.")
        return found

    def span(self) -> Span:
        storage = self.storage()
        with torch.inference_mode(False):
            memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return Span(memory=memory, start=0, nbytes=self.nbytes)

    def make_place(self) -> None:
        self._budget.take(self.nbytes, by=None)
        self.counted = self.nbytes
        try:
            self.storage().resize_(self.nbytes)
        except RuntimeError as error:
            self._uncount()
            raise SlabFull(f"The device refused {mebibytes(self.nbytes)} for a session's states: {error}") from error
        self.away, self.arriving = False, True

    def arrive(self) -> None:
        self.arriving = False

    def give_up_place(self) -> None:
        if not self.expired:
            storage: Any = self.storage()
            if not storage.resizable():  # somebody has been given the memory itself, as an array, meanwhile
                return
            storage.resize_(0)
        self.away, self.arriving = True, False
        self._uncount()

    def _uncount(self) -> None:
        size, self.counted = self.counted, 0
        self._budget.give_back(size)

    def discard(self) -> None:
        """Its tensors are gone, and with them its memory."""
        self.gone = True
        self._uncount()
        if not self.moving:
            self.drop_copies()

    def written_at(self, epoch: int) -> None:
        """Its bytes may be others than in another epoch."""
        if self.resident and self.epoch != epoch:
            self.wrote()
            self.epoch = epoch


class Blobs:
    """One blob for each storage that was ever asked for, until its tensors are gone. They draw from `budget` what they
    have on the device; what is asked for exists already, so it is recorded there."""

    def __init__(self, device: torch.device, budget: Budget) -> None:
        self.device, self._budget = device, budget
        self._blobs: dict[int, Blob] = {}
        self.untidy = False
        budget.join(
            self, Part(name="stops and states", held=lambda: self.bytes_held, idle=self._idle, release=self.purge)
        )

    @property
    def bytes_held(self) -> int:
        """Bytes on the device."""
        return sum(blob.counted for blob in self._blobs.values())

    def _idle(self) -> int:
        return sum(blob.counted for blob in self._blobs.values() if blob.expired and not blob.moving)

    def __iter__(self) -> Iterator[Blob]:
        return iter(self._blobs.values())

    def of(self, tensor: Tensor) -> Blob | None:
        """The blob of a tensor's storage. None where that is not ours to empty: on another device, or memory that
        somebody else allocated."""
        if tensor.device != self.device:
            return None
        storage: Any = tensor.untyped_storage()
        known = self._blobs.get(storage._cdata)
        if known is not None and (known.away or storage.resizable()):
            return known
        if not storage.nbytes() or not storage.resizable():
            return None
        made = Blob(storage, self._budget)
        self._blobs[made.identity] = made
        return made

    def known(self, tensor: Tensor) -> Blob | None:
        """The blob of a tensor's storage, where there is one already."""
        return self._blobs.get(tensor.untyped_storage()._cdata) if tensor.device == self.device else None

    def let_go(self, blob: Blob | None) -> None:
        """Discard a blob at once where its storage is gone."""
        if blob is not None and blob.expired and not blob.moving and self._blobs.pop(blob.identity, None) is not None:
            blob.discard()

    def is_away(self, tensor: Tensor) -> bool:
        """Whether its bytes are not, or not all, on the device where it belongs. Counts nothing."""
        known = self.known(tensor)
        return known is not None and not known.resident

    def adopt(self, stored: Stored, epoch: int | None) -> tuple[Blob, UntypedStorage]:
        """A blob that is away, with this copy of it on disk, and its storage, empty: it is gone with the storage.
        `epoch` where passes will write it."""
        storage = UntypedStorage(0, device=self.device)
        blob = Blob(storage, self._budget)
        blob.nbytes, blob.away, blob.epoch = stored.place.nbytes, True, epoch
        blob.keep("disk", stored)
        self._blobs[blob.identity] = blob
        return blob, storage

    def tidy(self) -> None:
        """Purge where somebody has let go of tensors."""
        if self.untidy:
            self.purge()

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that are kept from now on."""
        for tensor in tensors:
            self.of(tensor)

    def purge(self) -> int:
        """Let go of the copies of storages that are gone; bytes that they had on the device."""
        self.untidy = False
        before = self._budget.taken
        for identity in [identity for identity, blob in self._blobs.items() if blob.expired and not blob.moving]:
            self._blobs.pop(identity).discard()
        return before - self._budget.taken
