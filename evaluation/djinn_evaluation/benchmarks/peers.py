"""The environments of the tools whose code runs on an engine, which `make peers` makes: each sees Djinn's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.environments import NotRun

FOLDER: Final = Path(os.environ.get("DJINN_PEERS") or CHECKOUT / ".venv" / "peers")


def peer_python(tool: str) -> Path:
    """Return the interpreter of a tool's environment. NotRun where there is none."""
    python = FOLDER / tool / "bin" / "python"
    if not python.exists():
        raise NotRun(f"{tool} has no environment here: `make peers` makes one")
    return python
