"""`dj.load` and `dj.engines`: from a user's arguments to a ready engine. One channel per engine and process."""

from __future__ import annotations

import atexit
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Unpack

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.tables import Listing
from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.link.channel import Channels
from djinn_jupyter.link.launcher import adopt_or_start
from djinn_jupyter.link.registry import is_alive, running_engines
from djinn_jupyter.link.spelling import check_words, folder_passed_over, spell_model, spell_option
from djinn_jupyter.link.starting import StartCallbacks, Tell
from djinn_jupyter.link.waiting import waiting
from djinn_jupyter.remote.addresses import TOLD, entry_at, read_address, require_model
from djinn_jupyter.remote.hub_user import HUB, HubAdmission, Renewal
from djinn_jupyter.remote.ssh import CLUSTER, SCHEME, entry_in_cluster, entry_on, entry_through_ssh, read_place
from djinn_jupyter.settings import (
    GivenOptions,
    Identity,
    Options,
    ProcessOptions,
    check_least,
    given_by_name,
    part_of,
    takes,
)
from djinn_jupyter.wire.registry import Entry

_ALIKE: Final = (
    "shared_journal",
    "checkpoints",
    "moves",
    "threads",
    "trust_remote_code",
)  # a copy shares these, so that sessions can move to it


@takes(GivenOptions)
def load(
    model: str | Path,
    *,
    at: str | None = None,
    key: str | None = None,
    progress: Tell | None = None,
    each_second: Tell | None = None,
    **options: Unpack[GivenOptions],
) -> RemoteEngine:
    """Start the engine of a model (`demo`, a folder, a hub name), or attach to it if it already runs. With `at`, attach
    to the engine that `djinn serve` runs on another machine, as `connect` does, or start it there through ssh. at="hub"
    is the engine of that model at the JupyterHub of this server, at="cluster" the one in the Ray cluster of this
    machine.

    `dtype` and `device` are strings or torch objects; amounts of memory are in bytes or as "20GiB". `progress` is
    called with each step of the start, `each_second` with the present step and its duration; without either the
    terminal shows both. UsageError where an option is impossible on this machine, or differs from the running engine's.
    The options:
    """
    given = {name: spell_option(name, value) for name, value in given_by_name(GivenOptions, options).items()}
    check_least(GivenOptions, given)
    if at is None and (passed_over := folder_passed_over(model)) is not None:
        progress(passed_over) if progress is not None else warnings.warn(passed_over, stacklevel=2)
    with waiting(f"The load of {model}", quiet=progress is not None or each_second is not None) as wait:
        told = StartCallbacks(line=progress or wait.step, second=each_second or _not_said)
        if at is not None and at.startswith(SCHEME):
            return _through_ssh(at, key, str(model), given, told)
        if at == CLUSTER:
            return _attached(lambda: entry_in_cluster(spell_model(model), key, given, told))
        identity, serving = part_of(Identity, given, model=spell_model(model)), part_of(ProcessOptions, given)
        if at is not None:
            return _served_at(at, key, identity, given)
        if key is not None:
            raise UsageError("A key is for an engine on another machine: give its address too, as at='gpu-box'.")
        check_words(identity, serving)
        return _loaded(identity, part_of(Options, given), serving, told)


@typed
def connect(address: str, *, key: str | None = None) -> RemoteEngine:
    """Attach to the engine at `gpu-box`, `gpu-box:5556` or `tcp://gpu-box:5556`. Your `key` identifies you: a name or a
    file; None means the only key. `ssh://[user@]gpu-box[:port]` is your only running engine there, and uses the keys of
    ssh. `hub` is the engine at the JupyterHub of this server, and needs no key; `cluster` is the only engine in the Ray
    cluster of this machine. EngineUnavailable where none answers; KeyRefused where the engine does not admit the key,
    is not the one that `djinn key trust` recorded, or the hub refuses."""
    with waiting(f"The way to {address}") as wait:
        return _reached(address, key, StartCallbacks(line=wait.step, second=_not_said))


def _reached(address: str, key: str | None, told: StartCallbacks) -> RemoteEngine:
    if address.startswith(SCHEME):
        return _through_ssh(address, key, None, {}, told)
    if address == CLUSTER:
        return _attached(lambda: entry_in_cluster(None, key, {}, told))
    return _connected(address, key, None)


@typed
def beside(engine: RemoteEngine, where: str, *, progress: Tell | None = None) -> RemoteEngine:
    """Attach to another engine of the same model, as the target of a move: by its address, as in `connect`, or by the
    number of its `copy`. A copy that does not run yet is started where `engine` runs (this machine, or the cluster). In
    a cluster the name of a machine also works: a copy is started there if none runs, and an address must have a port.
    UsageError for an engine of another model, where copies cannot be started from here, or where no machine, or more
    than one, has that name.

    >>> dj.beside(engine, "2")  # doctest: +SKIP
    Engine demo (LlamaForCausalLM, 8 layers, float32 on cpu)
    """
    entry = engine.entry
    if entry is not None and entry.in_cluster and _names_a_machine(where):
        told = StartCallbacks(line=progress or _not_said, second=_not_said)
        return _attached(lambda: entry_on(where, entry, _of_copies(entry), told))
    if not where.isdecimal():
        return connect(where, key=entry.key if entry is not None else None)
    if entry is None or (entry.is_afar and not entry.in_cluster):
        raise UsageError("Copies are started on this machine or in its cluster: give the other engine's address.")
    given: Any = {**_of_copies(entry), "copy": int(where)}
    place = CLUSTER if entry.in_cluster else None
    return load(entry.identity.model, at=place, key=entry.key, progress=progress, **given)


def _names_a_machine(where: str) -> bool:
    """True for a name without a port or a scheme."""
    return not where.isdecimal() and ":" not in where and where not in (HUB, CLUSTER)


def _of_copies(entry: Entry) -> dict[str, Any]:
    """Return the options that an engine shares with a copy to which its sessions can move."""
    asked = dataclasses.asdict(entry.identity) | {name: getattr(entry.options, name) for name in _ALIKE}
    return {name: value for name, value in asked.items() if name != "model" and value not in (None, False)}


def _connected(address: str, key: str | None, model: str | None) -> RemoteEngine:
    """Return the engine at an address; at a hub the engine of a model, None for the only one."""
    entry = _admitted_by_hub(key, model) if address == HUB else entry_at(read_address(address), key)
    channel = _channels.to(entry)
    return RemoteEngine(channel, channel.entry)


def _admitted_by_hub(key: str | None, model: str | None) -> Entry:
    if key is not None:
        raise UsageError("At a hub your key is drawn and admitted by itself: leave key out.")
    admission = HubAdmission.ask()
    _renewal.keep(admission)
    return admission.entry(model)


def _served_at(address: str, key: str | None, identity: Identity, given: dict[str, Any]) -> RemoteEngine:
    """Return the engine at an address. UsageError where it serves another model, or engine options are given."""
    own = [name for name in given if name not in TOLD]
    if own:
        raise UsageError(f"{own[0]} is an option of the engine itself: give it to `djinn serve` on its machine.")
    engine = _connected(address, key, identity.model)
    assert engine.entry is not None  # it was reached by one
    require_model(engine.entry, identity)
    return engine


def _through_ssh(
    address: str, key: str | None, model: str | None, given: dict[str, Any], told: StartCallbacks
) -> RemoteEngine:
    """Return the engine of a model on a machine that ssh reaches, starting it there if needed."""
    if key is not None:
        raise UsageError("Through ssh the keys are ssh's own: leave the key out.")
    place = read_place(address)
    return _attached(lambda: entry_through_ssh(place, model, given, told))


def _loaded(identity: Identity, options: Options, serving: ProcessOptions, told: StartCallbacks) -> RemoteEngine:
    return _attached(lambda: adopt_or_start(identity, options, serving, told=told))


def _attached(find: Callable[[], Entry]) -> RemoteEngine:
    """Attach to the engine that `find` finds or starts. An engine that has just ended is started again, once. One that
    lives but does not answer is reported; only this machine can know that."""
    entry = find()
    try:
        return attach(entry)
    except EngineUnavailable:
        if not entry.is_afar and is_alive(entry):
            raise
    return attach(find())


def _not_said(line: str) -> None: ...


class EngineList(Listing[Entry]):
    """Engines that run."""

    _view = "engines_view"


def engines() -> Listing[Entry]:
    """Return the engines that run on this machine; `attach` to one of them, or `load` its model."""
    return EngineList(running_engines(), ("identity.model", "pid", "host", "listens", "version"))


def attach(entry: Entry) -> RemoteEngine:
    """Attach to a running engine through this process's channel to it, opening one if needed."""
    return RemoteEngine(_channels.to(entry), entry)


_channels, _renewal = Channels(), Renewal()
atexit.register(_channels.close)
