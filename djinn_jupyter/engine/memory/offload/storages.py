"""A session's tensors that are not pages, as items of the tiers: whole storages, by identity. Knows no session.

A storage that is swapped out is emptied in place (`resize_(0)`) and refilled when it returns, so every tensor and view
of it stays the same object. Other modules know which storages belong to a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.swappable import Item, Stored
from djinn_jupyter.engine.system.invariant_error import InvariantError
from djinn_jupyter.errors import SlabFull


class Storage(Item):
    """One of torch's storages, held weakly: it is freed with its last tensor, and no other storage gets its identity
    while this object exists. Its bytes on the device, `counted`, are drawn from the budget."""

    __slots__ = ("_weak", "arriving", "away", "budget", "counted", "epoch")

    def __init__(self, untyped: UntypedStorage, budget: Budget) -> None:
        super().__init__(untyped.nbytes())
        self._weak, self.budget = StorageWeakRef(untyped), budget
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

    @property
    def placed(self) -> bool:
        return self.counted > 0

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        """Return a tensor of the swapped-out storage. Raises SlabFull, and InvariantError if the tensor reaches beyond
        the storage or the storage is not away."""
        reach = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if all(shape) else 0
        if min(offset, *shape, *strides, 0) < 0 or reach * dtype.itemsize > self.nbytes or not self.away:
            raise InvariantError("A tensor was to be made of bytes that its storage does not have, or has already.")
        untyped = self.untyped()
        try:
            made = torch.empty(0, dtype=dtype, device=untyped.device).set_(
                untyped, offset, tuple(shape), tuple(strides)
            )
        except RuntimeError as error:
            raise SlabFull(f"The device refused {spell_bytes(self.nbytes)} for a session's states: {error}") from error
        untyped.resize_(0)  # set_ had enlarged it
        return made

    def untyped(self) -> UntypedStorage:
        found: UntypedStorage | None = UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        if found is None:
            raise InvariantError("A storage was to move that no tensor holds any more.")
        return found

    def span(self) -> Span:
        untyped = self.untyped()
        with torch.inference_mode(False):
            memory = torch.empty(0, dtype=torch.uint8, device=untyped.device).set_(untyped)
        return Span(memory=memory, start=0, nbytes=self.nbytes)

    def make_place(self) -> None:
        self.budget.take(self.nbytes, by=None)
        self.counted = self.nbytes
        try:
            self.untyped().resize_(self.nbytes)
        except RuntimeError as error:
            self._uncount()
            raise SlabFull(f"The device refused {spell_bytes(self.nbytes)} for a session's states: {error}") from error
        self.away, self.arriving = False, True

    def arrive(self) -> None:
        self.arriving = False

    def give_up_place(self) -> None:
        if not self.expired:
            untyped: Any = self.untyped()
            if not untyped.resizable():  # the memory was exported as an array meanwhile
                return
            untyped.resize_(0)
        self.away, self.arriving = True, False
        self._uncount()

    def _uncount(self) -> None:
        size, self.counted = self.counted, 0
        self.budget.give_back(size)

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


class StorageTable:
    """An item for each storage ever requested, until its tensors are freed. Their bytes are drawn from the budget of
    their device; a requested storage exists already, so its bytes are `record`ed."""

    def __init__(self, budgets: Mapping[torch.device, Budget]) -> None:
        self._budgets = dict(budgets)
        self._storages: dict[int, Storage] = {}
        self.untidy = False
        for home in self._budgets.values():
            held, idle = partial(self._held, home), partial(self._idle, home)
            home.join(self, Part(name="stops and states", held=held, idle=idle, release=self.purge))

    @property
    def devices(self) -> tuple[torch.device, ...]:
        return tuple(self._budgets)

    @property
    def bytes_held(self) -> int:
        """Bytes on the devices."""
        return sum(storage.counted for storage in self._storages.values())

    def _held(self, budget: Budget) -> int:
        return sum(storage.counted for storage in self._storages.values() if storage.budget is budget)

    def _idle(self, budget: Budget) -> int:
        waiting = (storage for storage in self._storages.values() if storage.expired and not storage.moving)
        return sum(storage.counted for storage in waiting if storage.budget is budget)

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._storages.values())

    def of(self, tensor: Tensor) -> Storage | None:
        """Return a tensor's storage as an item, made if needed. None where the engine cannot empty it: on another
        device, without bytes, or in memory allocated by another library."""
        budget = self._budgets.get(tensor.device)
        if budget is None:
            return None
        untyped: Any = tensor.untyped_storage()
        known = self._storages.get(untyped._cdata)
        if known is not None and (known.away or untyped.resizable()):
            return known
        if not untyped.nbytes() or not untyped.resizable():
            return None
        made = Storage(untyped, budget)
        self._storages[made.identity] = made
        return made

    def known(self, tensor: Tensor) -> Storage | None:
        """Return the existing item of a tensor's storage, or None."""
        return self._storages.get(tensor.untyped_storage()._cdata) if tensor.device in self._budgets else None

    def let_go(self, storage: Storage | None) -> None:
        """Discard a storage at once if its tensors are freed and no move is under way."""
        if (
            storage is not None
            and storage.expired
            and not storage.moving
            and self._storages.pop(storage.identity, None) is not None
        ):
            storage.discard()

    def is_away(self, tensor: Tensor) -> bool:
        """True if the tensor's bytes are not all on its device. Makes no item."""
        known = self.known(tensor)
        return known is not None and not known.resident

    def adopt(self, stored: Stored, epoch: int | None) -> tuple[Storage, UntypedStorage]:
        """Make a swapped-out storage of the first device with this copy of it on disk; return it with torch's own,
        which is empty. It expires when that is freed. `epoch` is given where passes will write it."""
        device, budget = next(iter(self._budgets.items()))
        untyped = UntypedStorage(0, device=device)
        storage = Storage(untyped, budget)
        storage.lie_on_disk(stored, epoch)
        self._storages[storage.identity] = storage
        return storage, untyped

    def note_freed(self) -> None:
        """Note that tensors may have been freed; `tidy` looks which."""
        self.untidy = True

    def tidy(self) -> None:
        """Purge if tensors were released since (`untidy`)."""
        if self.untidy:
            self.purge()

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Make items of tensors that are kept from now on, which counts their bytes."""
        for tensor in tensors:
            self.of(tensor)

    def purge(self) -> int:
        """Discard freed storages and their copies. Return the bytes that they had on the device."""
        self.untidy = False
        freed = 0
        for storage in [one for one in self._storages.values() if one.expired and not one.moving]:
            freed += storage.counted
            del self._storages[storage.identity]
            storage.discard()
        return freed
