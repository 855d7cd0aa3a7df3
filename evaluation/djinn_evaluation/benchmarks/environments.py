"""An environment for each tool that Djinn is compared with, so that none decides the versions of Djinn's packages."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

from djinn_evaluation import EVALUATION

FOLDER = EVALUATION / ".envs"
TOOLS = {
    "transformer_lens": "transformer-lens==4.3.0",
    "nnsight": "nnsight==0.8.1",
    "accelerate": "accelerate==1.15.0",
    "peft": "peft==0.21.2",
}
BESIDE = "psutil"  # in each environment: the workers read the machine's memory with it
INSTALL_SECONDS = 1800


class NotRun(Exception):
    """The other tool could not be run here; the message says why."""


def python_of(tool: str) -> Path:
    """Return the interpreter of a tool's environment, with the torch and transformers versions that Djinn has: this one
    where the tool is there in its version, else one of its own, made at first use. NotRun where it cannot be
    installed."""
    if _has(Path(sys.executable), TOOLS[tool]):
        return Path(sys.executable)
    python = FOLDER / tool / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / tool, with_pip=True)
    if not _has(python, TOOLS[tool]):
        _install(python, TOOLS[tool])
    return python


def _has(python: Path, requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    program = f"from importlib.metadata import version; version({BESIDE!r}); print(version({name!r}))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return found.stdout.strip() == wanted


def _install(python: Path, requirement: str) -> None:
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "transformers")]
    command = [str(python), "-m", "pip", "install", "--quiet", requirement, BESIDE, *pinned]
    print(f"  installing {requirement} into an environment of its own", file=sys.stderr, flush=True)
    try:
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS, capture_output=True)
    except subprocess.CalledProcessError:
        raise NotRun(f"pip could not install {requirement} and {BESIDE} beside {' and '.join(pinned)}") from None
    except subprocess.TimeoutExpired:
        raise NotRun(f"installing {requirement} took longer than {INSTALL_SECONDS} s") from None
