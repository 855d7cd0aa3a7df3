"""The machines of a Ray cluster as their users name them: by host name, by address, or by Ray's number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray._private import state

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError

Machine = Mapping[str, Any]  # as Ray describes it


def alive() -> list[Machine]:
    """Return the machines that are up."""
    return [one for one in ray.nodes() if one["Alive"]]


def named(name: str) -> Machine:
    """Return the machine of that name. UsageError, which says the names that there are, where none or several have
    it."""
    found = [one for one in alive() if name in (one["NodeID"], one["NodeManagerHostname"], one["NodeManagerAddress"])]
    if len(found) != 1:
        known = ", ".join(f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']})" for one in alive())
        raise UsageError(f"{'No' if not found else 'More than one'} machine is named {name}; there are: {known}.")
    return found[0]


def names() -> tuple[str, ...]:
    """Return a name of each machine that no other one has: its host name, or its address where others share that."""
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
    """Return what each machine, by Ray's number, has that nothing uses now."""
    found: dict[str, Mapping[str, float]] = state.available_resources_per_node()
    return found


def spell_resources(much: Mapping[str, float]) -> str:
    """Write an amount of each of Ray's resources: `2 CPUs, 1 GPU, 20 GiB`."""
    return ", ".join(_spelled(name, amount) for name, amount in much.items())


def _spelled(name: str, amount: float) -> str:
    if name == "memory":
        return spell_bytes(int(amount))
    return f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}"
