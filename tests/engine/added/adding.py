"""Add a module's folder to the engine of a desk, and take all modules away again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from djinn_jupyter.modules.files.folder import read_folder
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import NamedTensor
from djinn_jupyter.wire.replies import ModuleAdded
from tests.engine.desk import Desk


def request(
    folder: Path, at: str, name: str = "sae", session: str = "module 1", *, layer: int | None = None, **fields: Any
) -> ask.AddModule:
    found = read_folder(folder, layer)
    return ask.AddModule(
        session=session,
        name=name,
        at=at,
        form=found.form,
        tensors=tuple(NamedTensor(name=one, values=values) for one, values in found.tensors.items()),
        folder=str(found.path),
        digest=found.digest,
        **fields,
    )


def add(desk: Desk, folder: Path, at: str = "resid_post.4", name: str = "sae", **fields: Any) -> ModuleAdded:
    """Add a module, in a session of its own as the client does."""
    desk.ask(ask.Open(session="module 1", temporary=True))
    try:
        return desk.ask(request(folder, at, name, **fields))
    finally:
        desk.close("module 1")


def opened(desk: Desk) -> Iterator[Desk]:
    """Yield the desk with a session, and leave it without sessions and modules."""
    desk.open()
    yield desk
    desk.close_all()
    for module in desk.ask(ask.ListAddedModules()).modules:
        desk.ask(ask.RemoveModule(name=module.name))


def remove(desk: Desk, name: str = "sae") -> int:
    return desk.ask(ask.RemoveModule(name=name)).count
