"""Fingerprints of machines: the circumstances, besides its options, from which the bits of an engine follow."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from djinn_jupyter.cluster.machines import Machine
from djinn_jupyter.machine import processor

ANSWER_SECONDS: Final = 60.0
_COMPARED: Final = ("torch", "transformers", "djinn-jupyter")


def of_this_machine() -> dict[str, str]:
    return {"processor": processor(), **{name: version(name) for name in _COMPARED}}


def difference(here: Mapping[str, str], machine: Machine, other: Machine) -> str | None:
    """Return in which an engine's machine, whose own fingerprint is `here`, and another one differ; None where their
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
