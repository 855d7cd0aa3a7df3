"""A machine is about to go down: Ray places nothing more there, and its engines go on elsewhere with their sessions.
Where they fit is Ray's to say; whether their bits stay the same is looked at here, before anything is ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.cluster import machines
from djinn_jupyter.cluster.machines import Machine
from djinn_jupyter.cluster.placement import Placed, await_entry, placed
from djinn_jupyter.errors import DjinnError, EngineUnavailable
from djinn_jupyter.machine import processor
from djinn_jupyter.wire.registry import Ready

DRAIN_SECONDS: Final = 60.0
_COMPARED: Final = ("torch", "transformers", "djinn-jupyter")


def drained(name: str, told: StartCallbacks) -> Iterator[tuple[Placed, str]]:
    """Yield each engine of a machine with where it is now, or why it stays. Raises UsageError where no machine of that
    name is in the cluster, EngineUnavailable where Ray refuses."""
    machine = machines.named(name)
    there = [one for one in placed() if one.machine() == machine["NodeID"]]
    staying = [_reason_to_stay(one, machine) for one in there]  # while Ray still runs something there
    _close(machine["NodeID"])
    for one, reason in zip(there, staying, strict=True):
        yield one, _led_away(one, told) if reason is None else f"stays, because {reason}"


def _reason_to_stay(one: Placed, machine: Machine) -> str | None:
    notice = one.notice()
    if not isinstance(notice, Ready):
        return "it has not started yet: `djinn cluster stop` ends it"
    if notice.entry.options.shared_journal is None:
        return "it has no --shared-journal, so that no other machine has its sessions"
    return _unlike(machine, one.needs())


def _led_away(one: Placed, told: StartCallbacks) -> str:
    """Have an engine put its sessions into the shared journal and begin anew elsewhere; say where."""
    one.leave()
    try:
        entry = await_entry(one, None, told)
    except DjinnError as error:
        return f"has put its sessions into its journal, and does not start elsewhere: {str(error).rstrip('.')}"
    return f"is on {entry.host} now, at {entry.listens}"


def _unlike(machine: Machine, needs: dict[str, float]) -> str | None:
    """Say why sessions cannot move from a machine: no other one could take them, or Ray might choose one with another
    fingerprint. None where they can."""
    others = [one for one in machines.alive() if one["NodeID"] != machine["NodeID"]]
    able = [one for one in others if machines.has(one, needs)]
    if not able:
        return "no other machine has what it needs"
    here = _fingerprint(machine)
    for other in able:
        there = _fingerprint(other)
        differs = [f"{name} ({here[name]} here, {there[name]} there)" for name in here if here[name] != there[name]]
        if differs:
            return f"{other['NodeManagerHostname']} differs in {', '.join(differs)}, and so in last bits"
    return None


def _fingerprint(machine: Machine) -> dict[str, str]:
    """Return what the bits of an engine follow from besides its options."""
    at = NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False)
    asked = ray.remote(_of_this_machine).options(num_cpus=0, scheduling_strategy=at).remote()
    found: dict[str, str] = ray.get(asked, timeout=DRAIN_SECONDS)
    card = next((name for name in machine["Resources"] if name.startswith("accelerator_type:")), "none")
    return {**found, "GPU": card.removeprefix("accelerator_type:")}


def _of_this_machine() -> dict[str, str]:
    return {"processor": processor(), **{name: version(name) for name in _COMPARED}}


def _close(machine: str) -> None:
    """Have Ray place nothing more on a machine. Raises EngineUnavailable where it refuses."""
    address = ray.get_runtime_context().gcs_address
    words = ["drain-node", f"--address={address}", f"--node-id={machine}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command = [sys.executable, "-m", "ray.scripts.scripts", *words, "--reason-message=djinn cluster drain"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DRAIN_SECONDS, check=False)
    if said.returncode != 0:
        last = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()][-1:]
        raise EngineUnavailable(f"Ray does not drain that machine ({''.join(last).strip().rstrip('.')}).")
