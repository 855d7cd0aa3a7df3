"""Tensors of a session that are not pages, as items of the tiers: whole storages, by identity. Knows no session.

A storage that leaves is emptied in place (`resize_(0)`) and filled again when it comes back, so every tensor and view
of it stays the object it was. Which storages belong to a session is for others to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from djinn_jupyter.errors import SlabFull

from .budget import BooksBroken, mebibytes
from .items import Item, Stored
from .spans import Span


class Blob(Item):
    """One storage. Held weakly: it is gone when the last tensor of it is, and its identity is not given to another
    storage as long as this blob is there."""

    __slots__ = ("_weak", "arriving", "away", "epoch")

    def __init__(self, storage: UntypedStorage) -> None:
        super().__init__(storage.nbytes())
        self._weak = StorageWeakRef(storage)
        self.away = self.arriving = False
        self.epoch: int | None = None

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
        try:
            self.storage().resize_(self.nbytes)
        except RuntimeError as error:
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

    def discard(self) -> None:
        """Its tensors are gone, and with them its memory."""
        self.gone = True
        if not self.moving:
            self.drop_copies()

    def written_at(self, epoch: int) -> None:
        """Its bytes may be others than in another epoch."""
        if self.resident and self.epoch != epoch:
            self.wrote()
            self.epoch = epoch


class Blobs:
    """One blob for each storage that was ever asked for, until its tensors are gone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._blobs: dict[int, Blob] = {}
        self.untidy = False

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
        made = Blob(storage)
        self._blobs[made.identity] = made
        return made

    def adopt(self, stored: Stored, epoch: int | None) -> tuple[Blob, UntypedStorage]:
        """A blob that is away, with this copy of it on disk, and its storage, empty: it is gone with the storage.
        `epoch` where passes will write it."""
        storage = UntypedStorage(0, device=self.device)
        blob = Blob(storage)
        blob.nbytes, blob.away, blob.epoch = stored.place.nbytes, True, epoch
        blob.keep("disk", stored)
        self._blobs[blob.identity] = blob
        return blob, storage

    def tidy(self) -> None:
        """Purge where somebody has let go of tensors."""
        if self.untidy:
            self.purge()

    def purge(self) -> None:
        """Let go of the copies of storages that are gone."""
        self.untidy = False
        for identity in [identity for identity, blob in self._blobs.items() if blob.expired and not blob.moving]:
            self._blobs.pop(identity).discard()
