"""The machine and the versions that a result belongs to. Names no paths and no hosts; imports none of what it names."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from djinn_jupyter.machine import main_memory

PACKAGES = ("djinn-jupyter", "torch", "transformers", "pyzmq", "msgspec", "ipykernel", "ipython")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`threads` are those of the tensor library on either side. Load averages are over 1, 5 and 15 minutes."""

    device: str
    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str | None]
    threads: int
    begun: str
    ended: str | None
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float] | None


def describe(*, threads: int) -> Machine:
    return Machine(
        device="cpu",
        cpu=_cpu(),
        cores=len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 0,
        memory_gib=round(main_memory().total / 2**30, 1),
        system=platform.system(),
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
        threads=threads,
        begun=_now(),
        ended=None,
        load_before=_load(),
        load_after=None,
    )


def ended(machine: Machine) -> Machine:
    """The same machine after the benchmark."""
    return replace(machine, ended=_now(), load_after=_load())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> tuple[float, float, float]:
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
