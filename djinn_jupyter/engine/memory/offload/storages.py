"""A session's tensors that are not pages, as items of the tiers: whole storages, by identity. Knows no session.

A storage that is swapped out is emptied in place (`resize_(0)`) and refilled when it returns, so every tensor and view
of it stays the same object. Other modules know which storages belong to a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.books_broken import BooksBroken
from djinn_jupyter.errors import SlabFull


class Blob(Item):
    """One storage, held weakly: it is freed with its last tensor, and no other storage gets its identity while this
    blob exists. Its bytes on the device, `counted`, are drawn from the budget."""

    __slots__ = ("_budget", "_weak", "arriving", "away", "counted", "epoch")

    def __init__(self, storage: UntypedStorage, budget: Budget) -> None:
        super().__init__(storage.nbytes())
        self._weak, self._budget = StorageWeakRef(storage), budget
        self.away = self.arriving = False
        self.epoch: int | None = None
        self.counted = self.nbytes
        budget.record(self.counted)

    def lie_on_disk(self, stored: Stored, epoch: int | None) -> None:
        """Take a copy on disk in place of an empty storage's own bytes."""
        self.resize(stored.place.nbytes)
        self.away, self.epoch = True, epoch
        self.keep("disk", stored)

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
        """Return a tensor of the swapped-out storage. Raises SlabFull, and BooksBroken if the tensor reaches beyond the
        storage or the storage is not away."""
        reach = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if all(shape) else 0
        if min(offset, *shape, *strides, 0) < 0 or reach * dtype.itemsize > self.nbytes or not self.away:
            raise BooksBroken("A tensor was to be made of bytes that its storage does not have, or has already.")
        storage = self.storage()
        try:
            made = torch.empty(0, dtype=dtype, device=storage.device).set_(
                storage, offset, tuple(shape), tuple(strides)
            )
        except RuntimeError as error:
            raise SlabFull(f"The device refused {spell_bytes(self.nbytes)} for a session's states: {error}") from error
        storage.resize_(0)  # set_ had enlarged it
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
            raise SlabFull(f"The device refused {spell_bytes(self.nbytes)} for a session's states: {error}") from error
        self.away, self.arriving = False, True

    def arrive(self) -> None:
        self.arriving = False

    def give_up_place(self) -> None:
        if not self.expired:
            storage: Any = self.storage()
            if not storage.resizable():  # the memory was exported as an array meanwhile
                return
            storage.resize_(0)
        self.away, self.arriving = True, False
        self._uncount()

    def _uncount(self) -> None:
        size, self.counted = self.counted, 0
        self._budget.give_back(size)

    def discard(self) -> None:
        """Account for a storage whose tensors, and with them its memory, are freed."""
        self.gone = True
        self._uncount()
        if not self.moving:
            self.drop_copies()

    def written_at(self, epoch: int) -> None:
        """Note a possible write in `epoch`: copies made in another epoch become stale."""
        if self.resident and self.epoch != epoch:
            self.wrote()
            self.epoch = epoch


class Blobs:
    """One blob for each storage ever requested, until its tensors are freed. Blobs draw their device bytes from
    `budget`; a requested storage exists already, so its bytes are `record`ed."""

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
        """Return the blob of a tensor's storage, made if needed. None where the engine cannot empty it: on another
        device, without bytes, or in memory allocated by another library."""
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
        """Return the existing blob of a tensor's storage, or None."""
        return self._blobs.get(tensor.untyped_storage()._cdata) if tensor.device == self.device else None

    def let_go(self, blob: Blob | None) -> None:
        """Discard a blob at once if its storage is freed and no move is under way."""
        if blob is not None and blob.expired and not blob.moving and self._blobs.pop(blob.identity, None) is not None:
            blob.discard()

    def is_away(self, tensor: Tensor) -> bool:
        """True if the tensor's bytes are not all on its device. Makes no blob."""
        known = self.known(tensor)
        return known is not None and not known.resident

    def adopt(self, stored: Stored, epoch: int | None) -> tuple[Blob, UntypedStorage]:
        """Make a swapped-out blob with this copy of it on disk; return it with its empty storage. The blob expires when
        the storage is freed. `epoch` is given where passes will write it."""
        storage = UntypedStorage(0, device=self.device)
        blob = Blob(storage, self._budget)
        blob.lie_on_disk(stored, epoch)
        self._blobs[blob.identity] = blob
        return blob, storage

    def note_freed(self) -> None:
        """Note that tensors may have been freed; `tidy` looks which."""
        self.untidy = True

    def tidy(self) -> None:
        """Purge if tensors were released since (`untidy`)."""
        if self.untidy:
            self.purge()

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Make blobs for tensors that are kept from now on, which counts their bytes."""
        for tensor in tensors:
            self.of(tensor)

    def purge(self) -> int:
        """Discard the blobs, and their copies, of freed storages. Return the bytes that they had on the device."""
        self.untidy = False
        before = self._budget.taken
        for identity in [identity for identity, blob in self._blobs.items() if blob.expired and not blob.moving]:
            self._blobs.pop(identity).discard()
        return before - self._budget.taken
