"""The machine that a figure belongs to, before and after a benchmark: device, processor, versions, threads, load. Names
no paths and no hosts; imports none of the packages that it names."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import psutil

from djinn_evaluation.commit import PACKAGES, present, versions
from djinn_jupyter.machine import main_memory, processor
from djinn_jupyter.units import GIB, spell_bytes

OF_BENCHMARKS: Final = ("djinn-jupyter", "torch", "transformers", "pyzmq", "msgspec", "ipykernel", "ipython")


def machine() -> list[tuple[str, str]]:
    """Return names and values, as both reports list them."""
    return [
        ("processor", processor()),
        ("cores", str(cores())),
        ("memory", spell_bytes(main_memory().total)),
        ("system", f"{platform.system()} {platform.release()}"),
        ("python", platform.python_version()),
        *((name, version or "not installed") for name, version in versions(PACKAGES).items()),
    ]


def cores() -> int:
    """Return how many cores this process may compute on."""
    if hasattr(psutil.Process, "cpu_affinity"):
        return len(psutil.Process().cpu_affinity())
    return os.cpu_count() or 0


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
    """Return the machine as a benchmark begins."""
    return Machine(
        device=device,
        cpu=processor(),
        cores=cores(),
        memory_gib=round(main_memory().total / GIB, 1),
        system=platform.system(),
        python=platform.python_version(),
        versions={**versions(OF_BENCHMARKS), **{name: one for name, one in present().items() if name != "versions"}},
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
