"""The machine that a figure belongs to, and the versions of the packages installed there. Names no paths and no hosts;
imports none of the packages that it names."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata

import psutil

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.machine import main_memory, processor

PACKAGES = ("djinn-jupyter", "torch", "transformers", "accelerate", "vllm")


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


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
