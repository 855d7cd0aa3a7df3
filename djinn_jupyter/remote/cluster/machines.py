"""The machines of a Ray cluster as their users name them: by host name, by address, or by Ray's number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final

import ray
from ray._private import state
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import UsageError
from djinn_jupyter.machine import processor
from djinn_jupyter.units import spell_bytes

Machine = Mapping[str, Any]  # as Ray describes it


def alive() -> list[Machine]:
    """Return the machines that are up."""
    return [one for one in ray.nodes() if one["Alive"]]


def named(name: str) -> Machine:
    """Return the machine of that name. UsageError, with the known names, where none or several have it."""
    found = [one for one in alive() if name in (one["NodeID"], one["NodeManagerHostname"], one["NodeManagerAddress"])]
    if len(found) != 1:
        known = ", ".join(f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']})" for one in alive())
        raise UsageError(f"{'No' if not found else 'More than one'} machine is named {name}; there are: {known}.")
    return found[0]


def names() -> tuple[str, ...]:
    """Return a unique name of each machine: its host name, or its address where others share that."""
    hosts = Counter(one["NodeManagerHostname"] for one in alive())
    found = (
        one["NodeManagerHostname"] if hosts[one["NodeManagerHostname"]] == 1 else one["NodeManagerAddress"]
        for one in alive()
    )
    return tuple(sorted(found))


def has(machine: Machine, needs: Mapping[str, float]) -> bool:
    """True where a machine that runs nothing else has so much, by Ray's names."""
    return all(machine["Resources"].get(name, 0) >= much for name, much in needs.items())


def closed() -> set[str]:
    """Return Ray's numbers of the machines on which it places nothing more, because they are drained."""
    return {*state.state.get_draining_nodes()}


def free() -> dict[str, Mapping[str, float]]:
    """Return each machine's free resources, by Ray's number."""
    found: dict[str, Mapping[str, float]] = state.available_resources_per_node()
    return found


def spell_resources(much: Mapping[str, float]) -> str:
    """Write an amount of each of Ray's resources: `2 CPUs, 1 GPU, 20 GiB`."""
    return ", ".join(_spelled(name, amount) for name, amount in much.items())


def _spelled(name: str, amount: float) -> str:
    if name == "memory":
        return spell_bytes(int(amount))
    return f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}"


# Fingerprints of machines: the properties, besides its options, that determine the bits of an engine.

ANSWER_SECONDS: Final = 60.0
_COMPARED: Final = ("torch", "transformers")


def of_this_machine() -> dict[str, str]:
    return {"processor": processor(), **{name: version(name) for name in _COMPARED}, "djinn-jupyter": __version__}


def difference(here: Mapping[str, str], machine: Machine, other: Machine) -> str | None:
    """Return the difference between an engine's machine, with the fingerprint `here`, and another one; None where their
    bits are the same."""
    own, there = {**here, "GPU": _card(machine)}, {**_asked(other), "GPU": _card(other)}
    differs = [f"{name} ({own[name]} here, {there[name]} there)" for name in own if own[name] != there[name]]
    if not differs:
        return None
    return f"{other['NodeManagerHostname']} differs in {', '.join(differs)}, and so in last bits"


def _asked(machine: Machine) -> dict[str, str]:
    at = NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False)
    asked = ray.remote(of_this_machine).options(num_cpus=0, scheduling_strategy=at).remote()
    found: dict[str, str] = ray.get(asked, timeout=ANSWER_SECONDS)
    return found


def _card(machine: Machine) -> str:
    found = (name for name in machine["Resources"] if name.startswith("accelerator_type:"))
    return next(found, "none").removeprefix("accelerator_type:")


# A free place for an engine, which Ray holds on request, so that nothing else takes it while the engine stores its
# sessions. Our own sums over free resources would be a second scheduler, wrong where Ray's rules differ.

HOLD_SECONDS: Final = 10.0
_NAMED: Final = 4  # machines, in a sentence


@contextmanager
def held(needs: Mapping[str, float]) -> Iterator[bool]:
    """Yield whether Ray holds a place with so much, until the end of the block."""
    wanted = {name: much for name, much in needs.items() if much}
    if not wanted:
        yield True
        return
    place = placement_group([wanted], strategy="STRICT_PACK")
    try:
        yield place.wait(HOLD_SECONDS)
    finally:
        remove_placement_group(place)


def spell_free(others: list[Machine], needs: Mapping[str, float]) -> str:
    """Spell those machines' free part of the needed resources: `gpu-4 has 0 CPUs, gpu-5 1 CPU`."""
    free_place = free()
    said = [
        f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']}) has "
        + spell_resources({name: free_place.get(one["NodeID"], {}).get(name, 0) for name in needs})
        for one in others
    ]
    more = [f"and {len(said) - _NAMED} more are full too"] if len(said) > _NAMED else []
    return ", ".join(said[:_NAMED] + more)
