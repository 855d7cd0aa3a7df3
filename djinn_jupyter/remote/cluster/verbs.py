"""The verbs of `djinn cluster`. Each attaches to Ray, and leaves it when it is done.

Before a machine goes down, Ray places nothing more there, and its engines go on elsewhere with their sessions. Whether
they fit is Ray's to say, and whether their bits stay the same is looked at here, before anything is ended.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import ray

from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.link.launcher import require_options
from djinn_jupyter.link.registry import require_this_protocol
from djinn_jupyter.link.spelling import spell_model, spell_option
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.remote.addresses import key_folder
from djinn_jupyter.remote.cluster import machines
from djinn_jupyter.remote.cluster.machines import Machine, difference, held, spell_free, spell_resources
from djinn_jupyter.remote.cluster.placement import (
    Placed,
    SetAside,
    addresses,
    attached,
    await_entry,
    only,
    place,
    placed,
    there,
)
from djinn_jupyter.remote.cluster.placement import begin as begin
from djinn_jupyter.settings import GivenOptions, Identity, Options, ProcessOptions, check_least, part_of
from djinn_jupyter.wire.keys import FoundKeys, KeyPair, read_public, spell_public
from djinn_jupyter.wire.registry import Entry, Progressed, Ready, StartFailed, StillStarting

DRAIN_SECONDS: Final = 60.0


def drained(name: str, told: StartCallbacks) -> Iterator[tuple[Placed, str]]:
    """Yield each engine of a machine with its new place, or the reason why it stays: the largest first, because a small
    one finds a place more easily. Raises UsageError where no machine of that name is in the cluster, EngineUnavailable
    where Ray refuses."""
    machine = machines.named(name)
    there = sorted((one for one in placed() if one.machine() == machine["NodeID"]), key=_size, reverse=True)
    staying = [_reason_to_stay(one, machine) for one in there]
    _close(machine["NodeID"])
    for one, reason in zip(there, staying, strict=True):
        yield one, _led_away(one, machine, told) if reason is None else f"stays, because {reason}"


def _size(one: Placed) -> tuple[int, int, int]:
    needs = SetAside.of(one.needs())
    return needs.gpus, needs.memory_bytes, needs.cpus


def _reason_to_stay(one: Placed, machine: Machine) -> str | None:
    notice = one.notice()
    if not isinstance(notice, Ready):
        return "it has not started yet: `djinn cluster stop` ends it"
    if notice.entry.options.shared_journal is None:
        return "it has no --shared-journal, so that no other machine has its sessions"
    return _unlike(one, machine)


def _led_away(one: Placed, machine: Machine, told: StartCallbacks) -> str:
    """Make an engine store its sessions in the shared journal and start again elsewhere, if there is a free place;
    return the place, or that there is none."""
    needs = one.needs()
    with held(needs) as found:
        if not found:
            return f"stays and serves on, because {_full(machine, needs)}"
        one.leave()
    try:
        entry = await_entry(one, None, told)
    except DjinnError as error:
        return f"has put its sessions into its journal, and does not start elsewhere: {str(error).rstrip('.')}"
    return f"is on {entry.host} now, at {entry.listens}"


def _full(machine: Machine, needs: Mapping[str, float]) -> str:
    named = SetAside.of(needs).by_name()
    wanted = {name: much for name, much in named.items() if much}
    return (
        f"it needs {spell_resources(wanted)}, and no other machine has that free "
        f"({spell_free(_able(machine, needs), wanted)}): end something there or add a machine, then drain "
        f"{machine['NodeManagerAddress']} again"
    )


def _able(machine: Machine, needs: Mapping[str, float]) -> list[Machine]:
    """Return the other machines that accept engines and have so much when empty."""
    shut = {machine["NodeID"], *machines.closed()}
    return [one for one in machines.alive() if one["NodeID"] not in shut and machines.has(one, needs)]


def _unlike(one: Placed, machine: Machine) -> str | None:
    """Return why the sessions of an engine cannot leave its machine: no other one could take them, or Ray might choose
    one with another fingerprint. None where they can."""
    able = _able(machine, one.needs())
    if not able:
        return "no other machine has what it needs"
    here = one.fingerprint()
    return next((found for other in able if (found := difference(here, machine, other))), None)


def _close(machine: str) -> None:
    """Stop Ray from placing anything more on a machine. Raises EngineUnavailable where it refuses."""
    address = ray.get_runtime_context().gcs_address
    words = ["drain-node", f"--address={address}", f"--node-id={machine}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command = [sys.executable, "-m", "ray.scripts.scripts", *words, "--reason-message=djinn cluster drain"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DRAIN_SECONDS, check=False)
    if said.returncode != 0:
        last = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()][-1:]
        raise EngineUnavailable(f"Ray does not drain that machine ({''.join(last).strip().rstrip('.')}).")


# The engine to which a session moves when its user names a machine: one of the same model that runs there, or another
# copy that Ray places there.


def engine_on(name: str, own: Placed, options: Options, told: StartCallbacks) -> tuple[Placed, Entry]:
    """Return the engine like `own` on the machine of that name, with its entry when it is ready. A new copy gets
    `options`, and what Ray reserves for `own`. UsageError where the machine is ambiguous or cannot have one;
    EngineUnavailable where Ray places it elsewhere."""
    machine = machines.named(name)
    there = [one for one in _alike(own.identity) if one.machine() == machine["NodeID"]]
    others = [one for one in there if one.identity != own.identity]
    if len(others) > 1:
        raise UsageError(
            f"Several engines of the model are on {name}: {', '.join(str(one.identity) for one in others)}; name one "
            "by the number of its copy."
        )
    for found in others or there:
        return found, await_entry(found, None, told)
    return _placed_on(machine, name, own, options, told)


def _placed_on(
    machine: Machine, name: str, own: Placed, options: Options, told: StartCallbacks
) -> tuple[Placed, Entry]:
    needs = SetAside.of(own.needs())
    if not machines.has(machine, own.needs()):
        raise UsageError(f"{name} has not what an engine of {own.identity.model} needs here ({needs}).")
    identity = _free(own.identity)
    told.line(f"placing the engine of {identity} on {name}")
    engine = place(identity, options, ProcessOptions(), needs, on=machine["NodeID"])
    entry = await_entry(engine, needs, told)
    if engine.machine() != machine["NodeID"]:
        raise EngineUnavailable(
            f"Ray has placed the engine of {identity} on {entry.host}, at {entry.listens}, and not on {name}: name it "
            f"by {identity.copy}, the number of its copy, or `djinn cluster stop` ends it."
        )
    return engine, entry


def _alike(identity: Identity) -> Iterator[Placed]:
    """Yield the copies of an engine."""
    yield from (one for one in placed() if replace(one.identity, copy=identity.copy) == identity)


def _free(identity: Identity) -> Identity:
    """Return the identity of a copy that the cluster does not have."""
    taken = {one.identity.copy for one in _alike(identity)}
    return replace(identity, copy=next(number for number in count(1) if number not in taken))


Reserved = tuple[int | None, int | None, int | None]  # CPUs, GPUs, bytes of memory; None: from the options


def load(model: str, given: dict[str, Any], reserved: Reserved, told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model when it is ready; Ray places it where there is none."""
    with attached():
        return _loaded(model, given, reserved, told)[1]


def entry_for_person(model: str | None, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry by which a person of this machine reaches the engine of a model, None for the only one: its
    address, where the person's key is admitted and its own is trusted from now on."""
    own = key_folder().own(key)
    with attached():
        found, entry = _found(only(None), told) if model is None else _loaded(model, given, (None, None, None), told)
        return _reached(found, entry, own, key)


def entry_there(model: str, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of a present engine, when it is ready. UsageError where it has ended."""
    own = key_folder().own(key)
    with attached():
        found, entry = _found(there(part_of(Identity, given, model=model)), told)
        return _reached(found, entry, own, key)


def entry_on(machine: str, model: str, key: str | None, given: dict[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of an engine like the given one, on the machine of that name."""
    own, options = key_folder().own(key), part_of(Options, given)
    with attached():
        found, entry = engine_on(machine, there(part_of(Identity, given, model=model)), options, told)
        return _reached(found, entry, own, key)


def listed() -> list[tuple[Identity, str]]:
    """Return the engines of the cluster, each with its place or the progress of its start."""
    with attached():
        return [(one.identity, _state(one)) for one in placed()]


def drain(machine: str, told: StartCallbacks) -> list[tuple[Identity, str]]:
    """Stop new engines on a machine, and continue its own elsewhere with their sessions; return each of its engines
    with its new place, or the reason why it stays."""
    with attached():
        return [(one.identity, state) for one, state in drained(machine, told)]


def stop(model: str | None) -> Identity:
    """End the requested engine; return its identity."""
    with attached():
        meant = only(model)
        meant.end()
        _forget_ended()
    return meant.identity


def _loaded(model: str, given: dict[str, Any], reserved: Reserved, told: StartCallbacks) -> tuple[Placed, Entry]:
    """Return the engine of a model, and its entry when it is ready. UsageError where its options differ from the given
    ones."""
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
    """Return the number of GPUs that the options name; one a rank where they leave the device open and the cluster has
    any."""
    if "devices" in given:
        return len(str(given["devices"]).split(","))
    ranks = int(given.get("tensor_parallel", 1))
    if "device" in given:
        return ranks * int(given["device"] != "cpu")
    return ranks * int(ray.cluster_resources().get("GPU", 0) > 0)


def _found(engine: Placed, told: StartCallbacks) -> tuple[Placed, Entry]:
    return engine, await_entry(engine, None, told)


def _reached(engine: Placed, entry: Entry, own: KeyPair, key: str | None) -> Entry:
    """Admit a person; return the engine's entry with its address in place of its private folder, and record its key."""
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
    """Return the name of a key, which is the name of its person."""
    return Path(key).name if key else key_folder().names("own")[0]


def _state(one: Placed) -> str:
    """Return an engine's place, or the progress of its start."""
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
