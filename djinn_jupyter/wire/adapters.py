"""Low-rank adapters of a model's linear modules (LoRA): the requests about them, their replies and their description.
Tensors and factors alone; nothing in them is code."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.module_form import Digest, FolderPath, ModuleName
from djinn_jupyter.wire.opening import Described
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest

MOST_ADAPTED: Final = 2000  # a message has 4,096 frames, and each has two
AdapterName = ModuleName


class AdaptedModule(Frozen, frozen=True):
    """A linear module that an adapter changes: x has `factor` times up @ down @ x added to what the module makes of it.
    `down` is [rank, inputs], `up` [outputs, rank]."""

    path: Annotated[str, Meta(min_length=1, max_length=1024)]
    factor: float
    down: Array
    up: Array


class AdapterIdentity(Frozen, frozen=True):
    """An adapter but for its tensors, which are those of the files in `folder`, of that `digest`."""

    name: AdapterName
    folder: FolderPath
    digest: Digest


class AdapterDescription(Frozen, frozen=True):
    """An adapter: the number of `modules` that it changes, and the last words of their paths (`targets`). `sessions`
    compute with it. `missing`: why it cannot be computed with now. `note`: what its files say besides, told where it
    is added."""

    name: str
    folder: str
    digest: str
    modules: int
    targets: tuple[str, ...]
    bytes_held: int
    sessions: tuple[str, ...] = ()
    missing: str | None = None
    note: str | None = None


class RemoveAdapter(RequestBase[Cleared], browser="asks"):
    """Remove an adapter that no session computes with."""

    name: AdapterName


class SetAdapter(SessionRequest[Described], browser="asks"):
    """Have a session that holds no line compute with an adapter, None for the model alone."""

    adapter: AdapterName | None


class AdapterAdded(ReplyBase):
    """`existed`: it was there already, of the same files."""

    adapter: AdapterDescription
    existed: bool = False


class AddAdapter(SessionRequest[AdapterAdded], changes=False, whole_layers=True):
    """Add an adapter, read from the files in `folder`, a path of the client's, whose digest is `digest`. The session is
    empty: only its memory is used."""

    name: AdapterName
    modules: Annotated[tuple[AdaptedModule, ...], Meta(min_length=1, max_length=MOST_ADAPTED)]
    folder: FolderPath
    digest: Digest


class Adapters(ReplyBase):
    """The adapters that the asker has added, by name."""

    adapters: tuple[AdapterDescription, ...]


class ListAdapters(RequestBase[Adapters], browser="asks", resent="anew"): ...
