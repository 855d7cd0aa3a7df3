"""The engine to which a session moves when its user names a machine: one of the same model that runs there, or another
copy that Ray places there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.cluster import machines
from djinn_jupyter.cluster.machines import Machine
from djinn_jupyter.cluster.placement import Placed, SetAside, await_entry, place, placed
from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.options import Identity, Options, ProcessOptions
from djinn_jupyter.wire.registry import Entry


def engine_on(name: str, own: Placed, options: Options, told: StartCallbacks) -> tuple[Placed, Entry]:
    """Return the engine on the machine of that name that is like `own`, with its entry when it is ready. A copy that
    was not there gets `options`, and what Ray sets aside for `own`. UsageError where it is not clear which is meant, or
    the machine cannot have one; EngineUnavailable where Ray places it elsewhere."""
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
