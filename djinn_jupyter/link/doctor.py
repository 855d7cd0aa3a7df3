"""The checks of `djinn doctor`: versions, strangers' methods, torch, the device, memory, limits, registry, server. One
sentence a finding.

torch runs in a separate process; a finding states when something cannot be measured.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psutil
from jupyter_core.paths import jupyter_config_path

from djinn_jupyter import extensions
from djinn_jupyter._version import __version__
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import read_entry, refusal_of, registry_folder, running_engines
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import GIB, spell_bytes, spell_rate
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire.own import host_name, require_supported_platform
from djinn_jupyter.wire.registry import ENTRY_SUFFIX

COPY_BYTES = 128 * 2**20
PINNED_RATE = 22e9  # bytes per second: the speed of PCIe 4 x16, which the original asked for
PACKAGES = ("transformers", "ipykernel", "ipywidgets", "anywidget", "plotly", "pyzmq", "msgspec", "numpy")
WITHOUT_TORCH: tuple[extensions.Part, ...] = ("api", "magic", "card")
_ASK_TORCH = """
import json, torch
from djinn_jupyter.engine.memory.weights.copy_engine import measure_link, measure_return
found = {"version": torch.__version__, "threads": torch.get_num_threads(), "devices": []}
found["link"] = measure_link(torch.device("cpu"), 2**30)
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        card = torch.device("cuda", i)
        links = [measure_link(card, free), measure_return(card, free)]
        found["devices"].append([torch.cuda.get_device_name(i), free, total, links])
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: Literal["ok", "note", "bad"]
    sentence: str

    def __str__(self) -> str:
        return f"{self.level:<5}{self.sentence}"


def findings() -> list[Finding]:
    return [*_versions(), *_methods(), *_torch(), *_nvml(), *_memory(), _copying(), *_registry(), _server()]


def _ok(sentence: str) -> Finding:
    return Finding(level="ok", sentence=sentence)


def _note(sentence: str) -> Finding:
    return Finding(level="note", sentence=sentence)


def _bad(sentence: str) -> Finding:
    return Finding(level="bad", sentence=sentence)


def _versions() -> Iterator[Finding]:
    yield _ok(f"djinn-jupyter {__version__} on Python {sys.version.split()[0]}, {sys.platform}.")
    try:
        require_supported_platform()
    except DjinnError as error:
        yield _bad(str(error))
    if sys.platform == "darwin":
        yield _note("On a Mac an engine computes on the CPU; mps is refused.")
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            yield _bad(f"{package} is not installed: pip install djinn-jupyter.")
            continue
        if package == "ipykernel" and found.startswith("7.0."):
            yield _bad(f"ipykernel {found} loses messages sent from a thread: pip install 'ipykernel!=7.0.*'.")
        else:
            yield _ok(f"{package} {found}.")


def _methods() -> Iterator[Finding]:
    """Report the methods of strangers; all modules but the engine's are imported, to see whether they can be."""
    kinds.of_methods()  # methods whose messages clash, or are unreadable, are left out
    for method in extensions.installed():
        for name in () if method.is_ours else WITHOUT_TORCH:
            extensions.part(method, name)
    for method in extensions.methods():
        if not method.is_ours:
            yield _note(f"The method {method} is installed; it runs with the engine's rights.")
    yield from map(_bad, extensions.troubles().values())


def _torch() -> Iterator[Finding]:
    asked = subprocess.run(
        starting.command(_ASK_TORCH), env=starting.environment(), capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        yield _bad(f"torch cannot be used here ({last[0]}): pip install djinn-jupyter.")
        return
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    yield _ok(f"torch {found['version']}, {found['threads']} threads.")
    for name, free, total, links in found["devices"]:
        yield _ok(f"{name}: {spell_bytes(free)} of {spell_bytes(total)} device memory free.")
        yield from _pinned(name, *links)
    if not found["devices"]:
        yield _note("torch sees no CUDA device; models run on the CPU.")
        yield _ok(f"On the CPU weights that stream are copied at {spell_rate(found['link'])} from the page cache.")


def _pinned(card: str, there: float, back: float) -> Iterator[Finding]:
    """Judge the copies of pinned memory by the original's precondition for streaming."""
    for way, rate in (("Host -> Device (Pinned)", there), ("Device -> Host (Pinned)", back)):
        said = f"{card}: {way} {spell_rate(rate)}"
        if rate > PINNED_RATE:
            yield _ok(f"{said}.")
        else:
            yield _note(f"{said}; streaming and swapping at the speed of PCIe 4 take {spell_rate(PINNED_RATE)}.")


def _nvml() -> Iterator[Finding]:
    """Report each card as NVIDIA's management library sees it; experiments measure memory with it."""
    try:
        import pynvml
    except ImportError:
        yield _note("NVML cannot be asked: pip install djinn-jupyter.")
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield _note(f"NVML does not answer ({error}); experiments then measure no GPU from outside.")
        return
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield _ok(f"NVML, driver {driver}: {_card(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))}.")
    except pynvml.NVMLError as error:
        yield _bad(f"NVML answers and does not tell of its cards ({error}).")
    finally:
        pynvml.nvmlShutdown()


def _card(pynvml: Any, handle: Any) -> str:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    link = f"PCIe {pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)} x{pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}"
    used = f"{spell_bytes(memory.used)} of {spell_bytes(memory.total)} in use by all programs"
    return f"{pynvml.nvmlDeviceGetName(handle)}, {link}, {used}"


def _memory() -> Iterator[Finding]:
    memory, swap = main_memory(), psutil.swap_memory()
    within = f", held to that of {spell_bytes(memory.machine_total)} by its container" if memory.contained else ""
    yield _ok(f"{spell_bytes(memory.available)} of {spell_bytes(memory.total)} host memory available{within}.")
    if swap.total and swap.percent > 50:
        yield _note(
            f"{swap.percent:.0f} % of {spell_bytes(swap.total)} swap is in use: swapped-out sessions may be slow."
        )
    elif swap.total:
        yield _ok(f"{spell_bytes(swap.used)} of {spell_bytes(swap.total)} swap in use.")
    else:
        yield _ok("No swap.")
    try:
        import resource
    except ImportError:
        return  # not Linux, not macOS: said above
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield _ok("Memory may be locked without limit (ulimit -l).")
    else:
        yield _note(f"Only {spell_bytes(soft)} of memory may be locked (ulimit -l); pinned host memory may need more.")


def _copying() -> Finding:
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        target[:] = source
        seconds.append(time.perf_counter() - begun)
    return _ok(f"Host memory copies at {spell_rate(COPY_BYTES / min(seconds[1:]))} on one core.")


def _server() -> Finding:
    """Check that the Jupyter server of this environment loads the extension. Reads its configuration files; does not
    import jupyter_server."""
    if find_spec("jupyter_server") is None:
        return _note("No Jupyter server is installed here; the sidebar comes with the one that serves the notebooks.")
    said = [is_on for folder in jupyter_config_path() for is_on in _extension_in(Path(folder))]
    if said and said[0]:
        return _ok("The Jupyter server here loads the extension for the sidebar.")
    return _bad("The Jupyter server here does not load the sidebar's: `jupyter server extension enable djinn_jupyter`.")


def _extension_in(folder: Path) -> Iterator[bool]:
    """Yield the extension's entries (on or off) in a Jupyter configuration folder, the file that overrides first."""
    for name in ("jupyter_server_config.json", "jupyter_server_config.d/djinn_jupyter.json"):
        try:
            extensions = json.loads((folder / name).read_text())["ServerApp"]["jpserver_extensions"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no such file, or it does not list extensions
        if "djinn_jupyter" in extensions:
            yield bool(extensions["djinn_jupyter"])


def _registry() -> Iterator[Finding]:
    try:
        folder = registry_folder()
    except DjinnError as error:
        yield _bad(str(error))
        return
    running = running_engines()  # removes the entries of dead engines
    others = unreadable = 0
    for path in folder.glob(f"*{ENTRY_SUFFIX}"):
        entry = read_entry(path)
        unreadable += entry is None
        others += entry is not None and entry.host != host_name()
    count = "1 engine runs" if len(running) == 1 else f"{len(running)} engines run"
    yield _ok(f"{count} here, registered in {folder}.")
    for entry in running:
        refusal = refusal_of(entry)
        if refusal is not None:
            yield _bad(refusal)
    if others:
        yield _note(f"{others} entries in the registry are of other hosts and are left alone.")
    if unreadable:
        yield _bad(f"{unreadable} entries in {folder} cannot be read; remove them if no engine is missing.")
    free = shutil.disk_usage(folder).free
    yield (_ok if free > GIB else _bad)(f"{spell_bytes(free)} free on the disk of the registry and logs.")
