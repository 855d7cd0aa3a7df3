"""`python -m djinn_evaluation.benchmarks.environments [TOOL ...]`: an environment for each tool we compare with."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Final

from djinn_evaluation import CHECKOUT

FOLDER: Final = Path(os.environ.get("DJINN_PEERS") or CHECKOUT / ".venv" / "peers")
TOOLS: Final = {
    "transformer_lens": "transformer-lens==4.3.0",
    "nnsight": "nnsight==0.8.1",
    "interp_engine": "interp-engine==1.14.2",
    "peft": "peft==0.21.2",
    "sae_lens": "sae-lens==6.54.12",  # with the TransformerLens that it wants
    "pandas": "pandas==3.1.1",
    "circuit_tracer": "circuit-tracer==0.5.0",
    "deepspeed": "deepspeed==0.19.8",
    "vllm": "vllm==0.33.0",
}
READ: Final = ("circuit_tracer", "vllm")  # and not run: they want another transformers, a torch for CUDA
PEERS: Final = tuple(tool for tool in TOOLS if tool not in ("deepspeed", "vllm"))
INSTALL_SECONDS: Final = 1800


class NotRun(Exception):
    """Raised where the other tool cannot run here, with the reason."""


def peer_python(tool: str) -> Path:
    """Return the interpreter of a tool's environment. NotRun where there is none."""
    python = _python(tool)
    if not python.exists():
        raise NotRun(f"{tool} has no environment here: `make peers` makes one")
    return python


def python_of(tool: str) -> Path:
    """Return the interpreter of a tool's environment, made at first use. NotRun: it cannot be installed."""
    if _has(Path(sys.executable), TOOLS[tool]):
        return Path(sys.executable)
    python = _python(tool)
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
    if not _has(python, TOOLS[tool]):
        _install(python, tool)
    return python


def _python(tool: str) -> Path:
    return FOLDER / tool.replace("_", "-") / "bin" / "python"


def _has(python: Path, requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    program = f"from importlib.metadata import version; print(version({name!r}))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return found.stdout.strip() == wanted


def _install(python: Path, tool: str) -> None:
    home = python.parents[1]
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(os.path.realpath(sysconfig.get_path("purelib")) + "\n")
    pinned = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in (*pinned, "transformer-lens")]
    (home / "constraints.txt").write_text("\n".join([*kept, *(f"{name}=={one}" for name, one in pinned.items())]))
    alone = ["--no-deps"] if tool in READ else []
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(home / "constraints.txt"), *alone]
    print(f"  installing {TOOLS[tool]} into an environment of its own", file=sys.stderr, flush=True)
    try:
        subprocess.run([*command, TOOLS[tool]], check=True, timeout=INSTALL_SECONDS, capture_output=True)
    except subprocess.CalledProcessError:
        raise NotRun(f"pip could not install {TOOLS[tool]} beside Djinn") from None
    except subprocess.TimeoutExpired:
        raise NotRun(f"installing {TOOLS[tool]} took longer than {INSTALL_SECONDS} s") from None


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PEERS:
        try:
            print(python_of(wanted), flush=True)
        except NotRun as why:
            print(f"not_run: {why}", file=sys.stderr)
