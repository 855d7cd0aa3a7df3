"""The added modules and the adapter that a stored session uses: found among the present ones, or read again.

A folder is read only for the engine's own user, and only counts if its digest is the stored one. A module that is not
there is missing, which its sites report wherever they are computed; the session is not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.modules.engine import checks, processed_values
from djinn_jupyter.modules.engine.added import AddedModule, ModuleTable, fitted, point_of
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.modules.files import folder, peft
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity

log = logging.getLogger(__name__)


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
    try:
        if person is not None:
            raise UsageError("Its folder lies on the machine of its person.")
        found = folder.read_folder(Path(module.identity.folder), module.layer)
        if found.digest != module.identity.digest:
            raise UsageError(f"The files in {module.identity.folder} are others than they were.")
        _take_in(table, module, found.tensors, forward, point)
    except DjinnError as error:
        module.held.let_go(f"{_gone(module)}: {error} {_advice(module)}")
        log.warning("%s", module.held.missing)


def _take_in(
    table: ModuleTable, module: AddedModule, arrays: Mapping[str, Array], forward: Forward, point: Tap
) -> None:
    form, size = module.identity.form, checks.bytes_of(module.identity.form, arrays)
    checks.widths_of(form, arrays)
    if size != module.identity.bytes_held:
        raise UsageError("It was kept with another size.")
    table.draw(size)
    try:
        home, processed = forward.home_of(point), processed_values.processed_at(forward, form, point.site)
        tensors = {name: checks.on_device(name, array, form, home) for name, array in arrays.items()}
        module.held.make_present(processed_values.arithmetic_of(form, tensors, processed))
    except BaseException:
        table.give_back(size)
        raise


def _gone(module: AddedModule) -> str:
    return f"The module {module.site}, which this session was kept with, is not there"


def _advice(module: AddedModule) -> str:
    own = module.identity
    return f"Add it again (%djinn_add_module {own.name} {own.folder} --at {own.at})."


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
    own = adapter.identity
    try:
        if person is not None:
            raise UsageError("Its folder lies on the machine of its person.")
        found = peft.read_adapter(Path(own.folder))
        if found.digest != own.digest:
            raise UsageError(f"The files in {own.folder} are others than they were.")
        parts = fitted(runtime.forward, found.modules)
        size = sum(part.nbytes for part in parts)
        runtime.modules.adapters.draw(size)
        try:
            adapter.make_present([part.on_device() for part in parts], size)
        except BaseException:
            runtime.modules.adapters.give_back(size)
            raise
    except DjinnError as error:
        adapter.let_go(
            f"The adapter {own.name}, which this session was kept with, is not there: {error} Add it again "
            f"(%djinn_add_adapter {own.name} {own.folder})."
        )
        log.warning("%s", adapter.missing)
