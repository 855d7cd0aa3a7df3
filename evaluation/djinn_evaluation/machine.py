"""The machine and the code that a figure belongs to, and the time that processes had a core. No paths, no hosts."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import psutil

from djinn_evaluation import CHECKOUT
from djinn_evaluation.course import now
from djinn_jupyter._version import __version__
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.machine import device_of_environment, main_memory, processor, why_no_gpu
from djinn_jupyter.units import GIB, spell_bytes

PACKAGES: Final = ("djinn-jupyter", "torch", "transformers", "accelerate", "vllm")
FOLDERS: Final = ("djinn_jupyter", "evaluation/djinn_evaluation")  # of the code; documents and results change no figure
Code = Mapping[str, Any]


def present_code() -> dict[str, Any]:
    """Return the field `code` of a result file; what only git knows is None outside of a checkout."""
    told = {"versions": {**versions(PACKAGES), "djinn-jupyter": __version__}}
    if git("rev-parse", "--show-toplevel") != str(CHECKOUT.resolve()):
        return {"commit": None, "clean": None, "changes": None, **told}
    new = git("ls-files", "--others", "--exclude-standard", "--", *FOLDERS) or ""
    changed = (git("diff", "HEAD", "--", *FOLDERS) or "") + "".join(map(_content, new.splitlines()))
    digest = hashlib.sha256(changed.encode()).hexdigest()[:16] if changed else None
    return {"commit": git("rev-parse", "HEAD"), "clean": not changed, "changes": digest, **told}


def same_code(one: Code | None, other: Code | None) -> bool:
    """Return whether two results were made by one version, and by commits that do not differ in FOLDERS."""
    if one is None or other is None or _version(one) != _version(other):
        return one is other
    first, second = one.get("commit"), other.get("commit")
    if first is None or second is None:
        return True
    if any(one.get(name) != other.get(name) for name in ("clean", "changes")):
        return False
    if first == second:
        return True
    trees = _trees(first)
    return trees is not None and trees == _trees(second)


def spelled_code(code: Code | None) -> str:
    """Return a code in words, such as `version 0.1.0, commit 1c794f7f with changes`."""
    if code is None:
        return "no commit"
    commit = code.get("commit")
    named = "" if commit is None else f", commit {commit[:8]}{'' if code.get('clean') else ' with changes'}"
    return f"version {_version(code)}{named}"


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    return {name: _version_of(name) for name in packages}


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git(*arguments: str) -> str | None:
    """Return git's output on the checkout; None where it fails or is missing."""
    command = ["git", "-C", str(CHECKOUT), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.rstrip()


def _content(name: str) -> str:
    return f"{name}\n{Path(CHECKOUT, name).read_bytes().hex()}\n"


def _version(code: Code) -> Any:
    return code.get("versions", {}).get("djinn-jupyter")


def _trees(commit: str) -> str | None:
    return git("rev-parse", *(f"{commit}:{folder}" for folder in FOLDERS))


# The GPUs of this machine, and the device that a run computes on. torch runs in a separate process, because it takes
# memory on each GPU.
_ASK = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


def device_of(index: int | None) -> str | None:
    """Return the torch name of the GPU of that index; None for None. UsageError for a GPU that is not there."""
    if index is None:
        return None
    there = gpus()
    if 0 <= index < len(there):
        return f"cuda:{index}"
    if not there:
        raise UsageError(f"There is no GPU {index}: torch finds none here; without an index the CPU computes.")
    listed = ", ".join(f"{number} ({name})" for number, name in enumerate(there))
    raise UsageError(f"There is no GPU {index}: there are {listed}.")


def computed_on() -> str:
    """Return the device of DJINN_DEVICE, else the first GPU, else the CPU, as engines and baselines choose theirs."""
    return device_of_environment() or ("cpu" if why_no_gpu() or not gpus() else "cuda:0")


def card_of(device: str) -> str:
    """Return the name of a GPU as its driver has it; of any other device its kind, such as cpu."""
    kind, _, index = device.partition(":")
    return gpus()[int(index or 0)] if kind == "cuda" else kind


def gpus() -> list[str]:
    """Return the names of the GPUs, in the order of their indices."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise DjinnError(f"torch does not tell which GPUs there are: {asked.stderr.strip().rpartition(chr(10))[2]}")
    found: list[str] = json.loads(asked.stdout)
    return found


PROCESSES: Final = Path("/proc")


def seconds_without_core(pids: Sequence[int]) -> float | None:
    """Return the seconds for which these processes' threads had no core; None where no kernel counts them."""
    return _seconds(pids, 1)


def seconds_computed(*pids: int) -> float | None:
    """Return the CPU seconds of these processes' threads; None where the system does not say."""
    return _seconds(pids, 0)


def _seconds(pids: Sequence[int], place: int) -> float | None:
    files = [file for pid in pids for file in (PROCESSES / str(pid) / "task").glob("*/schedstat")]
    found = [nanoseconds for file in files if (nanoseconds := _nanoseconds(file, place)) is not None]
    return sum(found) / 1e9 if found else None


@dataclass(slots=True)
class CoreWait:
    """The share of a block's time without a core; None until it has ended, and where the kernel counts none."""

    share: float | None = None


@contextmanager
def core_wait(pids: Sequence[int]) -> Iterator[CoreWait]:
    """Measure these processes' wait for a core during the block."""
    found, before, begun = CoreWait(), seconds_without_core(pids), perf_counter()
    yield found
    seconds, after = perf_counter() - begun, seconds_without_core(pids)
    if before is not None and after is not None:
        found.share = max(0.0, after - before) / seconds


def _nanoseconds(file: Path, place: int) -> int | None:
    """Return one of a thread's three numbers; None for a thread that has ended."""
    try:
        return int(file.read_text().split()[place])
    except (OSError, IndexError):
        return None


@contextmanager
def cores_first(pids: Sequence[int], *, asked: bool) -> Iterator[bool]:
    """Give these processes cores before all others in the block, if `asked`; yield True where the kernel grants it."""
    granted = asked and _granted(pids)
    try:
        yield granted
    finally:
        if granted:
            _schedule(pids, first=False)


def _granted(pids: Sequence[int]) -> bool:
    """Return whether all of these processes have the cores first; where the kernel refuses one, none has them."""
    try:
        return _schedule(pids, first=True)
    except PermissionError:
        with suppress(PermissionError):  # of the one that was refused
            _schedule(pids, first=False)
        return False


def _schedule(pids: Sequence[int], *, first: bool) -> bool:
    """Set the kernel's policy for each thread of these processes. Return False where there is no such policy."""
    if sys.platform != "linux":
        return False
    policy = os.SCHED_RR if first else os.SCHED_OTHER
    for pid in pids:
        for thread in (PROCESSES / str(pid) / "task").glob("*"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(int(first)))
    return True


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
    """Return the number of cores that this process may use."""
    if hasattr(psutil.Process, "cpu_affinity"):
        return len(psutil.Process().cpu_affinity())
    return os.cpu_count() or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`threads` are torch's on each side; `versions` has the commit; load averages are over 1, 5 and 15 minutes."""

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
        versions={
            **versions(OF_BENCHMARKS),
            **{name: one for name, one in present_code().items() if name != "versions"},
        },
        threads=threads,
        begun=now(),
        ended=None,
        load_before=_load(),
        load_after=None,
    )


def ended(machine: Machine) -> Machine:
    """Return the same machine with the load after the benchmark."""
    return replace(machine, ended=now(), load_after=_load())


def _load() -> tuple[float, float, float]:
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)
