"""A free place for an engine, which Ray is asked for and holds, so that nothing else takes it while the engine puts its
sessions away.

Sums of our own over free resources would be a second scheduler, wrong where Ray's rules are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ray.util import placement_group, remove_placement_group

from djinn_jupyter.cluster import machines
from djinn_jupyter.cluster.machines import Machine, spell_resources

HOLD_SECONDS: Final = 10.0
_NAMED: Final = 4  # machines, in a sentence


@contextmanager
def held(needs: Mapping[str, float]) -> Iterator[bool]:
    """Yield whether Ray holds a place that has so much, until the end of the block."""
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
    """Write what those machines have free of the resources that are needed: `gpu-4 has 0 CPUs, gpu-5 1 CPU`."""
    free = machines.free()
    said = [
        f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']}) has "
        + spell_resources({name: free.get(one["NodeID"], {}).get(name, 0) for name in needs})
        for one in others
    ]
    more = [f"and {len(said) - _NAMED} more are full too"] if len(said) > _NAMED else []
    return ", ".join(said[:_NAMED] + more)
