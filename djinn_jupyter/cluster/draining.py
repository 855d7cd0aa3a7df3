"""A machine is about to go down: Ray places nothing more there, and its engines go on elsewhere with their sessions.
Whether they fit is Ray's to say, and whether their bits stay the same is looked at here, before anything is ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import ray

from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.cluster import machines
from djinn_jupyter.cluster.fingerprints import difference
from djinn_jupyter.cluster.machines import Machine, spell_resources
from djinn_jupyter.cluster.placement import Placed, SetAside, await_entry, placed
from djinn_jupyter.cluster.vacancy import held, spell_free
from djinn_jupyter.errors import DjinnError, EngineUnavailable
from djinn_jupyter.wire.registry import Ready

DRAIN_SECONDS: Final = 60.0


def drained(name: str, told: StartCallbacks) -> Iterator[tuple[Placed, str]]:
    """Yield each engine of a machine with where it is now, or why it stays: the largest first, because a small one
    finds a place more easily. Raises UsageError where no machine of that name is in the cluster, EngineUnavailable
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
    """Have an engine put its sessions into the shared journal and begin anew elsewhere, where there is a free place
    for it; say where, or that there is none."""
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
    """Return the other machines that take engines and have so much, were they empty."""
    shut = {machine["NodeID"], *machines.closed()}
    return [one for one in machines.alive() if one["NodeID"] not in shut and machines.has(one, needs)]


def _unlike(one: Placed, machine: Machine) -> str | None:
    """Say why the sessions of an engine cannot leave its machine: no other one could take them, or Ray might choose one
    with another fingerprint. None where they can."""
    able = _able(machine, one.needs())
    if not able:
        return "no other machine has what it needs"
    here = one.fingerprint()
    return next((found for other in able if (found := difference(here, machine, other))), None)


def _close(machine: str) -> None:
    """Have Ray place nothing more on a machine. Raises EngineUnavailable where it refuses."""
    address = ray.get_runtime_context().gcs_address
    words = ["drain-node", f"--address={address}", f"--node-id={machine}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command = [sys.executable, "-m", "ray.scripts.scripts", *words, "--reason-message=djinn cluster drain"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DRAIN_SECONDS, check=False)
    if said.returncode != 0:
        last = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()][-1:]
        raise EngineUnavailable(f"Ray does not drain that machine ({''.join(last).strip().rstrip('.')}).")
