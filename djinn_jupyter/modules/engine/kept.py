"""The added modules and the adapter that a stored session uses: found among the present ones, or read again.

A folder is read only for the engine's own user, and only counts if its digest is the stored one. A module that is not
there is missing, which its sites report wherever they are computed; the session is not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.modules.engine import checks, processed_values
from djinn_jupyter.modules.engine.added import AddedModule, ModuleTable, fitted, point_of
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.modules.files import files, folder, peft
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity

log = logging.getLogger(__name__)
Found = TypeVar("Found", files.ModuleFolder, peft.AdapterFolder)


def tap_of_kept(runtime: Runtime, identity: ModuleIdentity) -> Tap:
    """Return the tap of a stored session's module. Raises UsageError and UnknownSite for one that this model cannot
    have had, and where another has its name."""
    table, person = runtime.modules.table, runtime.modules.person
    point = point_of(identity.name, identity.at, runtime.forward.anatomy, identity.inputs)
    kept = table.new(person, identity)
    there = table.find(person, identity.name, kept.layer)
    if there is None:
        table.put(person, kept)
        _read_again(table, kept, person, runtime.forward, point)
        there = kept
    if not there.is_that(identity):
        raise UsageError(
            f"It has {kept.site} of {identity.folder}, and {there.site} here is another module, of "
            f"{there.identity.folder}: remove that one first (%djinn_remove_module {there.site})."
        )
    return there.tap_in(runtime.forward.anatomy)


def _read_again(table: ModuleTable, module: AddedModule, person: str | None, forward: Forward, point: Tap) -> None:
    """Read the module's tensors from its folder; mark it missing where that fails."""
    own = module.identity
    try:
        found = _read(lambda path: folder.read_folder(path, module.layer), own, person)
        size = checks.bytes_of(own.form, found.tensors)
        checks.widths_of(own.form, found.tensors)
        if size != own.bytes_held:
            raise UsageError("It was kept with another size.")
        table.draw(size)
        with table.given_back_on_error(size):
            home, processed = forward.home_of(point), processed_values.processed_at(forward, own.form, point.site)
            tensors = {name: checks.on_device(name, array, own.form, home) for name, array in found.tensors.items()}
            module.held.make_present(processed_values.arithmetic_of(own.form, tensors, processed))
    except DjinnError as error:
        added = f"%djinn_add_module {own.name} {own.folder} --at {own.at}"
        module.held.let_go(_missing(f"module {module.site}", error, added))
        log.warning("%s", module.held.missing)


def _read(read: Callable[[Path], Found], own: ModuleIdentity | AdapterIdentity, person: str | None) -> Found:
    """Read a folder. Raises UsageError unless it is of this machine and has the files of before."""
    if person is not None:
        raise UsageError("Its folder lies on the machine of its person.")
    found = read(Path(own.folder))
    if found.digest != own.digest:
        raise UsageError(f"The files in {own.folder} are others than they were.")
    return found


def _missing(what: str, error: DjinnError, added: str) -> str:
    return f"The {what}, which this session was kept with, is not there: {error} Add it again ({added})."


# The adapter of a stored session, found or read again as above. A missing one is reported by each run of its sessions;
# a session is not lost.


def adapter_of_kept(runtime: Runtime, identity: AdapterIdentity | None) -> HeldAdapter | None:
    """Return a stored session's adapter. Raises UsageError where another has its name."""
    if identity is None:
        return None
    table, person = runtime.modules.adapters, runtime.modules.person
    there = table.same(person, identity)
    if there is None:
        there = HeldAdapter(identity=identity)
        table.put(person, there)
        _read_adapter_again(runtime, there, person)
    return there


def _read_adapter_again(runtime: Runtime, adapter: HeldAdapter, person: str | None) -> None:
    """Read its tensors from its folder; mark it missing where that fails."""
    own, table = adapter.identity, runtime.modules.adapters
    try:
        parts = fitted(runtime.forward, _read(peft.read_adapter, own, person).modules)
        size = sum(part.nbytes for part in parts)
        table.draw(size)
        with table.given_back_on_error(size):
            adapter.make_present([part.on_device() for part in parts], size)
    except DjinnError as error:
        adapter.let_go(_missing(f"adapter {own.name}", error, f"%djinn_add_adapter {own.name} {own.folder}"))
        log.warning("%s", adapter.missing)
