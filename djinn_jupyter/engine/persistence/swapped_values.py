"""Read a session's tensors wherever they are: on the device, or in the host or disk copy of a swapped-out one. So an
image of any session can be written at any moment."""

from __future__ import annotations

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.offload.disk import DiskPlace, DiskTier
from djinn_jupyter.engine.memory.offload.host import HostPlace, HostTier
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.memory.offload.storages import Blob, Blobs
from djinn_jupyter.engine.system.books_broken import BooksBroken


def values_of(blobs: Blobs, tensor: Tensor) -> Tensor:
    """Return the values of a tensor on the host, for immediate use: the memory may be a tier's. Raises StorageFailed
    where the disk does not give them."""
    blob = blobs.of(tensor) if blobs.is_away(tensor) else None  # `of` would count a short-lived tensor
    if blob is None:
        return tensor.detach().to("cpu")
    raw = _copy(blob).view(tensor.dtype)
    return raw.as_strided(tensor.shape, tensor.stride(), raw.storage_offset() + int(tensor.storage_offset()))


def _copy(blob: Blob) -> Tensor:
    """Return the bytes of a swapped-out storage, `uint8[nbytes]`."""
    host, disk = (blob.copies.get(tier) for tier in ("host", "disk"))
    if host is not None and isinstance(host.place, HostPlace) and isinstance(host.keeper, HostTier):
        return host.keeper.span(host.place).view()
    if disk is None or not isinstance(disk.place, DiskPlace) or not isinstance(disk.keeper, DiskTier):
        raise BooksBroken("A value of a session is neither on the device nor in a tier.")
    assert disk.checksum is not None
    raw = torch.empty(blob.nbytes, dtype=torch.uint8)
    disk.keeper.read(disk.place, disk.checksum, Span(memory=raw, start=0, nbytes=blob.nbytes))
    return raw
