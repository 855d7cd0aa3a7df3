"""The machine that a result belongs to, before and after its benchmark: device, versions, threads, load."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from djinn_evaluation.commit import present
from djinn_evaluation.machine import cores, versions
from djinn_jupyter.amounts import GIB
from djinn_jupyter.machine import main_memory, processor

PACKAGES = ("djinn-jupyter", "torch", "transformers", "pyzmq", "msgspec", "ipykernel", "ipython")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`threads` are those of torch on each side; `versions` has the commit that is measured. Load averages are over 1,
    5 and 15 minutes."""

    device: str
    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    versions: dict[str, Any]
    threads: int
    begun: str
    ended: str | None
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float] | None


def describe(*, threads: int, device: str) -> Machine:
    return Machine(
        device=device,
        cpu=processor(),
        cores=cores(),
        memory_gib=round(main_memory().total / GIB, 1),
        system=platform.system(),
        python=platform.python_version(),
        versions={**versions(PACKAGES), **{name: one for name, one in present().items() if name != "versions"}},
        threads=threads,
        begun=_now(),
        ended=None,
        load_before=_load(),
        load_after=None,
    )


def ended(machine: Machine) -> Machine:
    """Return the same machine with the load after the benchmark."""
    return replace(machine, ended=_now(), load_after=_load())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> tuple[float, float, float]:
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)
