"""Modules that a client adds to a model: the requests about them, and their replies."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.limits import Spelling
from djinn_jupyter.wire.module_form import (
    MOST_TENSORS,
    AddedModuleDescription,
    Digest,
    FolderPath,
    ModuleForm,
    ModuleName,
    NamedTensor,
)
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest


class RemoveModule(RequestBase[Cleared], browser="asks"):
    """Remove the module of that name: at `layer`, or at all."""

    name: ModuleName
    layer: Annotated[int, Meta(ge=0, le=2**31)] | None = None


class ModuleAdded(ReplyBase):
    """`existed`: it was there already, of the same files."""

    module: AddedModuleDescription
    existed: bool = False


class AddModule(SessionRequest[ModuleAdded], changes=False):
    """Add a module named `name` that reads the point `at`, such as `resid_post.4`; its site is then `name.4`. The
    tensors are those of the files in `folder`, a path of the client's, whose digest is `digest`. An edit of its values
    keeps what it cannot reconstruct where `error_term` is true. The session is empty: only its memory is used."""

    name: ModuleName
    at: Spelling
    form: ModuleForm
    tensors: Annotated[tuple[NamedTensor, ...], Meta(max_length=MOST_TENSORS)]
    folder: FolderPath
    digest: Digest
    error_term: bool = True


class AddedModules(ReplyBase):
    """The modules that the asker has added, in order of their sites."""

    modules: tuple[AddedModuleDescription, ...]


class ListAddedModules(RequestBase[AddedModules], browser="asks", resent="anew"): ...
