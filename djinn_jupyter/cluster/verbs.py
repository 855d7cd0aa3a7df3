"""The verbs of `djinn cluster`. Each attaches to Ray, and leaves it when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import ray

from djinn_jupyter.client.engines.keys import key_folder
from djinn_jupyter.client.engines.launcher import require_options
from djinn_jupyter.client.engines.spelling import spell_model, spell_option
from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.client.engines.versions import require_this_protocol
from djinn_jupyter.cluster import machines
from djinn_jupyter.cluster.attaching import attached
from djinn_jupyter.cluster.attaching import begin as begin
from djinn_jupyter.cluster.draining import drained
from djinn_jupyter.cluster.neighbours import engine_on
from djinn_jupyter.cluster.placement import Placed, SetAside, addresses, await_entry, only, place, placed, there
from djinn_jupyter.described import check_least, part_of
from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.options import GivenOptions, Identity, Options, ProcessOptions
from djinn_jupyter.wire.found_keys import FoundKeys
from djinn_jupyter.wire.keys import KeyPair, read_public, spell_public
from djinn_jupyter.wire.registry import Entry, Progressed, Ready, StartFailed, StillStarting

Reserved = tuple[int | None, int | None, int | None]  # CPUs, GPUs, bytes of memory; None is found from the options


def load(model: str, given: dict[str, Any], reserved: Reserved, told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model when it is ready; Ray places it where there is none."""
    with attached():
        return _loaded(model, given, reserved, told)[1]


def entry_for_person(model: str | None, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry by which a person of this machine reaches the engine of a model, None for the only one: its
    address, at which the person's key is admitted and its own is trusted from now on."""
    own = key_folder().own(key)
    with attached():
        found, entry = _found(only(None), told) if model is None else _loaded(model, given, (None, None, None), told)
        return _reached(found, entry, own, key)


def entry_there(model: str, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return likewise the entry of an engine that the cluster has, when it is ready. UsageError where it has ended."""
    own = key_folder().own(key)
    with attached():
        found, entry = _found(there(part_of(Identity, given, model=model)), told)
        return _reached(found, entry, own, key)


def entry_on(machine: str, model: str, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return likewise the entry of an engine like the one that is given, on the machine of that name."""
    own, options = key_folder().own(key), part_of(Options, given)
    with attached():
        found, entry = engine_on(machine, there(part_of(Identity, given, model=model)), options, told)
        return _reached(found, entry, own, key)


def listed() -> list[tuple[Identity, str]]:
    """Return the engines of the cluster, each with where it is or how its start goes."""
    with attached():
        return [(one.identity, _state(one)) for one in placed()]


def drain(machine: str, told: StartCallbacks) -> list[tuple[Identity, str]]:
    """Have a machine take no more engines, and its own go on elsewhere with their sessions; return each engine of it
    with where it is now, or why it stays."""
    with attached():
        return [(one.identity, state) for one, state in drained(machine, told)]


def stop(model: str | None) -> Identity:
    """End the engine that is meant; return its identity."""
    with attached():
        meant = only(model)
        meant.end()
        _forget_ended()
    return meant.identity


def _loaded(model: str, given: dict[str, Any], reserved: Reserved, told: StartCallbacks) -> tuple[Placed, Entry]:
    """Return the engine of a model, and its entry when it is ready. UsageError where it has other options than those
    that are given."""
    spelled = {name: spell_option(name, value) for name, value in given.items()}
    check_least(GivenOptions, spelled)
    if "listen" in spelled:
        raise UsageError("The engines of a cluster listen where Ray places them: leave --listen out.")
    identity, options = part_of(Identity, spelled, model=spell_model(model)), part_of(Options, spelled)
    needs = _needs(spelled, *reserved)
    found = place(identity, options, part_of(ProcessOptions, spelled), needs)
    entry = await_entry(found, needs, told)
    require_options(entry, options)
    return found, entry


def _needs(given: dict[str, Any], cpus: int | None, gpus: int | None, memory: int | None) -> SetAside:
    return SetAside(
        cpus=given.get("threads", 1) if cpus is None else cpus,
        gpus=_gpus(given) if gpus is None else gpus,
        memory_bytes=memory or 0,
    )


def _gpus(given: dict[str, Any]) -> int:
    """Return how many GPUs the options name; one a rank where they leave the device open and the cluster has any."""
    if "devices" in given:
        return len(str(given["devices"]).split(","))
    ranks = int(given.get("tensor_parallel", 1))
    if "device" in given:
        return ranks * int(given["device"] != "cpu")
    return ranks * int(ray.cluster_resources().get("GPU", 0) > 0)


def _found(engine: Placed, told: StartCallbacks) -> tuple[Placed, Entry]:
    return engine, await_entry(engine, None, told)


def _reached(engine: Placed, entry: Entry, own: KeyPair, key: str | None) -> Entry:
    """Admit a person; return the engine's entry with its address in the place of its private folder, where its key is
    noted."""
    entry = msgspec.structs.replace(entry, in_cluster=True, machines=machines.names())
    assert entry.listens is not None  # the actor gave it an address
    require_this_protocol(entry)
    engines_key = engine.admit(spell_public(own.public), _person(key))
    _found_keys().note(entry.listens.removeprefix("tcp://"), read_public(engines_key))
    _forget_ended()
    return msgspec.structs.replace(entry, commands=entry.listens, key=key, log=None)


def _found_keys() -> FoundKeys:
    return FoundKeys(key_folder(), f"the cluster at {ray.get_runtime_context().gcs_address}")


def _forget_ended() -> None:
    """Forget the keys of this cluster's engines that have ended."""
    there = addresses()
    if there is not None:
        _found_keys().clear(there)


def _person(key: str | None) -> str:
    """Return the name of a key, which is that of the person whom it admits."""
    return Path(key).name if key else key_folder().names("own")[0]


def _state(one: Placed) -> str:
    """Return where an engine is, or how its start goes."""
    try:
        notice = one.notice()
    except EngineUnavailable:
        return "has just ended"
    match notice:
        case None:
            return "waits for Ray to place it"
        case Ready(entry=entry):
            return f"on {entry.host}, at {entry.listens}"
        case StartFailed(message=message):
            return message
        case Progressed(line=line) | StillStarting(line=line):
            return line
    raise AssertionError(notice)
