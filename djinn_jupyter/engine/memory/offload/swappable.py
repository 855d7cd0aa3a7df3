"""An item of the tiers: some bytes of the device, with a version and the copies that exist. Moves nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.memory.offload.extents import Span
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.nouns import Tier


class Place(Protocol):
    """The location of a copy in a tier."""

    @property
    def nbytes(self) -> int: ...


class Keeper(Protocol):
    """A tier, as a copy sees it."""

    @property
    def traffic(self) -> Traffic: ...

    def free(self, place: Place) -> None: ...


@dataclass(slots=True)
class Traffic:
    """The bytes that were copied out of the device to a tier, and back in."""

    bytes_out: int = 0
    bytes_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A copy of an item in its `version`, at `place` in the tier `keeper`. `checksum` where the tier needs one."""

    keeper: Keeper
    place: Place
    version: int
    checksum: int | None = None

    def free(self) -> None:
        self.keeper.free(self.place)


class Item:
    """Bytes that are on the device or were swapped out.

    Invariants: every write increments `version` and frees copies of older versions at once, so a stale copy can never
    be loaded. An item that is not resident has a copy of the present version or is `gone`. While `moving`, a copy from
    or to its device bytes is under way and they stay where they are; one move at a time.
    """

    __slots__ = ("arriving", "copies", "gone", "moving", "nbytes", "version")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.version = 0
        self.copies: dict[Tier, Stored] = {}
        self.arriving = self.moving = self.gone = False

    @property
    @abstractmethod
    def resident(self) -> bool:
        """True if all of its bytes are on the device."""

    @property
    @abstractmethod
    def placed(self) -> bool:
        """True if its bytes take room on the device, also while they arrive there."""

    @abstractmethod
    def span(self) -> Span:
        """Return its bytes on the device, also while they arrive."""

    @abstractmethod
    def make_place(self) -> None:
        """Take room on the device for bytes that are about to arrive. Raises SlabFull."""

    @abstractmethod
    def give_up_place(self) -> None:
        """Free the device bytes: they were stored, did not arrive, or the item is gone."""

    def note_arrival(self) -> None:
        """Note that the bytes have arrived."""
        self.arriving = False

    def resize(self, nbytes: int) -> None:
        """Count as many bytes; no copy of them exists yet."""
        self.nbytes = nbytes

    def wrote(self) -> None:
        """Note that the device bytes were written: increment the version and drop all copies."""
        self.version += 1
        self.drop_copies()

    def leave(self) -> None:
        """Free the device bytes. Raises InvariantError unless they are resident, not moving and copied."""
        if not self.resident or self.moving or not self.copies:
            raise InvariantError("An item was to leave the device without a copy, in the middle of one, or twice.")
        self.give_up_place()

    def discard(self) -> None:
        """Free an item without holders. A move under way ends first and finds it `gone`; then this is called again."""
        self.gone = True
        if not self.moving:
            self.drop_copies()
            self.release()

    def release(self) -> None:
        """Free the device bytes of a resident item."""
        if self.resident:
            self.give_up_place()

    def keep(self, tier: Tier, stored: Stored) -> None:
        if stored.version != self.version or tier in self.copies:
            raise InvariantError(f"A copy of version {stored.version} came for an item in version {self.version}.")
        self.copies[tier] = stored

    def drop_copy(self, tier: Tier) -> None:
        """Free the copy in a tier, if one exists."""
        stored = self.copies.pop(tier, None)
        if stored is not None:
            stored.free()

    def drop_copies(self) -> None:
        for tier in tuple(self.copies):
            self.drop_copy(tier)

    def check(self) -> None:
        if not self.gone and not self.resident and not self.copies:
            raise InvariantError("An item is neither on the device nor in a tier.")
        if wrong := [s.version for s in self.copies.values() if s.version != self.version]:
            raise InvariantError(f"Copies of versions {wrong} are kept of an item in version {self.version}.")


# A session's tensors that are not pages, as items of the tiers: whole storages, by identity. Knows no session. A
# storage that is swapped out is emptied in place (`resize_(0)`) and refilled when it returns, so every tensor and view
# of it stays the same object. Other modules know which storages belong to a session.


class Storage(Item):
    """One of torch's storages, held weakly: it is freed with its last tensor, and no other storage gets its identity
    while this object exists. Its bytes on the device, `counted`, are drawn from the budget."""

    __slots__ = ("_weak", "away", "budget", "counted", "epoch")

    def __init__(self, untyped: UntypedStorage, budget: Budget) -> None:
        super().__init__(untyped.nbytes())
        self._weak, self.budget = StorageWeakRef(untyped), budget
        self.away = False
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
