"""The part of the machine that this process may use: its processor, the device that DJINN_DEVICE names, and its share
of main memory, which is the machine's, or less where its control groups (a container, a job of a cluster) limit it. All
budgets and refusals use these figures.

Linux kills a process that exceeds its group's limit, and `/proc/meminfo` does not show that limit. Both versions of
control groups are read, from the process's own group up to the topmost visible one; other systems have none.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

DEVICE_VARIABLE = "DJINN_DEVICE"
DEV = Path("/dev")
MPS_REFUSED: Final = "mps has not been proved: on a Mac an engine computes on the CPU. Write cpu, or give no device."
# Device files of the GPU drivers behind PyTorch's CUDA: NVIDIA's cards (nvidiactl exists without one, too), those of
# its boards, Windows' in WSL, AMD's.
_GPUS: Final = ("nvidia[0-9]*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")


def device_of_environment() -> str | None:
    """Return the device to use by default; None for the best there is. Tests, benchmarks and notebooks use it too."""
    return os.environ.get(DEVICE_VARIABLE) or None


def why_no_gpu() -> str | None:
    """Return why this process can see no GPU; None where it may see one. It asks neither torch nor a driver: that would
    take seconds, and memory on each card."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return None if any(True for one in _GPUS for _ in DEV.glob(one)) else "the system shows no GPU"


@cache
def processor() -> str:
    """Return the processor's name where the system has one, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True, slots=True, kw_only=True)
class MainMemory:
    """Amounts in bytes: the limit of this process, the part of it that is available now, and the memory of the machine.
    Pages that cache files count as available, as in `MemAvailable`."""

    total: int
    available: int
    machine_total: int

    @property
    def contained(self) -> bool:
        return self.total < self.machine_total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The names of the files of one version of control groups."""

    limit: str
    usage: str
    caches: tuple[str, ...]


_ONE = _Version(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    caches=("total_inactive_file", "total_active_file"),
)
_TWO = _Version(limit="memory.max", usage="memory.current", caches=("inactive_file", "active_file"))


def main_memory(root: Path = Path("/")) -> MainMemory:
    """Return main memory as it is now. `root` has the `proc` and `sys` with the control groups."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit, left in _limits(root, total):
        total, available = min(total, limit), min(available, left)
    return MainMemory(total=total, available=max(0, available), machine_total=int(machine.total))


def _limits(root: Path, machine: int) -> Iterator[tuple[int, int]]:
    """Yield the limit of each group of this process that may have less than the machine, and its free part. The other
    groups limit nothing, and reading a group's files costs a third of a millisecond."""
    for version, folder in _groups(root):
        limit = _number(folder / version.limit)
        usage = _number(folder / version.usage) if limit is not None and limit < machine else None
        if limit is not None and usage is not None:
            yield limit, limit - usage + _cached(folder / "memory.stat", version.caches)


def _groups(root: Path) -> tuple[tuple[_Version, Path], ...]:
    """Return the process's own group and the groups around it that are mounted here."""
    try:
        return _folders(root, (root / "proc/self/cgroup").read_text())
    except OSError:  # no control groups
        return ()


@cache
def _folders(root: Path, told: str) -> tuple[tuple[_Version, Path], ...]:
    """Return the folders of the groups that `/proc/self/cgroup` names; the names change when the process is moved.
    Mounts are read once for each text, because reading them takes longer than all the rest."""
    return tuple(_mounted(root, dict(_own_groups(told)), (root / "proc/self/mountinfo").read_text()))


def _mounted(root: Path, mine: dict[_Version, str], mounts: str) -> Iterator[tuple[_Version, Path]]:
    for version, top, mounted in _mounts(mounts):
        if version not in mine:
            continue
        below = PurePosixPath(mine[version])
        inside = below.relative_to(top) if below.is_relative_to(top) else PurePosixPath()
        for folder in (inside, *inside.parents):
            yield version, root / mounted.lstrip("/") / folder


def _own_groups(told: str) -> Iterator[tuple[_Version, str]]:
    """Yield version and path of each line `number:controllers:path`."""
    for line in told.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _TWO, path
        elif "memory" in controllers.split(","):
            yield _ONE, path


def _mounts(told: str) -> Iterator[tuple[_Version, str, str]]:
    """Yield the mounted hierarchies that may limit memory: the top group of each, and its mount point."""
    for line in told.splitlines():
        place, _, kind = line.partition(" - ")
        top, mounted = (_unescaped(word) for word in place.split()[3:5])
        name, _, options = kind.split()[:3]
        if name == "cgroup2":
            yield _TWO, top, mounted
        elif name == "cgroup" and "memory" in options.split(","):
            yield _ONE, top, mounted


def _unescaped(word: str) -> str:
    r"""Return the path with `\134` and `\040` read as a backslash and a space."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _number(file: Path) -> int | None:
    """Return the number in a file; None where there is no such file, or it says `max`."""
    try:
        told = file.read_text().strip()
    except OSError:
        return None
    return int(told) if told.isdigit() else None


def _cached(file: Path, names: tuple[str, ...]) -> int:
    try:
        told = dict(line.split(" ", 1) for line in file.read_text().splitlines())
    except OSError:
        return 0
    return sum(int(told.get(name, 0)) for name in names)
