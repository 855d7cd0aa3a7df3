"""What a run ran on, and the versions of what is installed."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import psutil

from djinn_jupyter.machine import main_memory

PACKAGES = ("djinn-jupyter", "torch", "transformers", "accelerate", "vllm")


def machine() -> list[tuple[str, str]]:
    """Names and values, as both reports list them."""
    found = [
        ("processor", _processor()),
        ("cores", str(psutil.cpu_count())),
        ("memory", f"{main_memory().total / 2**30:.1f} GiB"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("python", platform.python_version()),
    ]
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _processor() -> str:
    """Its name where the system tells one."""
    cpuinfo = Path("/proc/cpuinfo")
    told = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
