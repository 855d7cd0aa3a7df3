"""The adapter that a kept session computes with: found among those that are there, or read again.

A folder is read for the engine's own user alone, and counts only where its digest is the one that was kept. One that is
not there is missing, which each run of its sessions says; a session is not lost for it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from djinn_jupyter.engine.model.added.low_rank import HeldAdapter
from djinn_jupyter.engine.session.fitting import fitted
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.module_files.peft import read_adapter
from djinn_jupyter.wire.adapters import AdapterIdentity

log = logging.getLogger(__name__)


def adapter_of_kept(runtime: Runtime, identity: AdapterIdentity | None) -> HeldAdapter | None:
    """Return the adapter that a session was kept with. Raises UsageError where another has its name."""
    if identity is None:
        return None
    table, person = runtime.modules.adapters, runtime.modules.person
    there = table.same(person, identity)
    if there is None:
        there = HeldAdapter(identity=identity)
        table.put(person, there)
        _read_again(runtime, there, person)
    return there


def _read_again(runtime: Runtime, adapter: HeldAdapter, person: str | None) -> None:
    """Have its tensors read from its folder; say that it is missing where they cannot be."""
    own = adapter.identity
    try:
        if person is not None:
            raise UsageError("Its folder lies on the machine of its person.")
        found = read_adapter(Path(own.folder))
        if found.digest != own.digest:
            raise UsageError(f"The files in {own.folder} are others than they were.")
        parts = fitted(runtime.forward, found.modules)
        size = sum(part.nbytes for part in parts)
        runtime.modules.adapters.draw(size)
        try:
            adapter.arrive([part.on_device() for part in parts], size)
        except BaseException:
            runtime.modules.adapters.give_back(size)
            raise
    except DjinnError as error:
        adapter.let_go(
            f"The adapter {own.name}, which this session was kept with, is not there: {error} Add it again "
            f"(%djinn_add_adapter {own.name} {own.folder})."
        )
        log.warning("%s", adapter.missing)
