"""Read a session's tensors wherever they are: on the device, or in the host or disk copy of a swapped-out one. So an
image of any session can be written at any moment."""

from __future__ import annotations

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.host import HostPlace, HostTier
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.storages import Storage, StorageTable
from djinn_jupyter.engine.system.invariant_error import InvariantError


def values_of(storage_table: StorageTable, tensor: Tensor) -> Tensor:
    """Return the values of a tensor on the host, for immediate use: the memory may be a tier's. Raises StorageFailed
    where the disk does not give them."""
    storage = (
        storage_table.of(tensor) if storage_table.is_away(tensor) else None
    )  # `of` would count a short-lived tensor
    if storage is None:
        return tensor.detach().to("cpu")
    raw = _copy(storage).view(tensor.dtype)
    return raw.as_strided(tensor.shape, tensor.stride(), raw.storage_offset() + int(tensor.storage_offset()))


def _copy(storage: Storage) -> Tensor:
    """Return the bytes of a swapped-out storage, `uint8[nbytes]`."""
    host, disk = (storage.copies.get(tier) for tier in ("host", "disk"))
    if host is not None and isinstance(host.place, HostPlace) and isinstance(host.keeper, HostTier):
        return host.keeper.span(host.place).view()
    if disk is None or not isinstance(disk.place, DiskPlace) or not isinstance(disk.keeper, DiskTier):
        raise InvariantError("A value of a session is neither on the device nor in a tier.")
    assert disk.checksum is not None
    raw = torch.empty(storage.nbytes, dtype=torch.uint8)
    disk.keeper.read(disk.place, disk.checksum, Span(memory=raw, start=0, nbytes=storage.nbytes))
    return raw
