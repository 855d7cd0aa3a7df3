"""How this package starts a Python process of its own, so that it runs the same whatever watches the one that asks.

Debuggers and profilers rewrite command lines that begin with Python, in `subprocess` and in `os` (pydevd turns them
into `pydevd.py --multiprocess ...`, whose process then waits for an editor), and hand themselves on in the environment.
So the command line begins with a shell, which no such tool touches, and the environment goes along without their
variables.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import djinn_jupyter
from djinn_jupyter.errors import EngineStartFailed

SHELL: Final = "/bin/sh"
_FOREGROUND: Final = 'exec "$0" "$@"'
_BACKGROUND: Final = '"$0" "$@" &'  # the shell ends at once: the process is a child of nobody who waits for it
_FIND_PACKAGE: Final = "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "

_WATCHERS: Final = re.compile(r"COVERAGE_|COV_CORE_|PYDEVD|DEBUGPY_|VIZTRACER|SCALENE|MEMRAY")
_THIS_KERNEL: Final = re.compile(r"JPY_|MPLBACKEND$|__PYVENV_LAUNCHER__$")
_INTERPRETER: Final = re.compile(r"PYTHON[A-Z]")
_KEPT: Final = frozenset(
    {
        "PYTHONPATH",
        "PYTHONUSERBASE",
        "PYTHONNOUSERSITE",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUTF8",
        "PYTHONCOERCECLOCALE",
        "PYTHONIOENCODING",
        "PYTHONHASHSEED",
        "PYTHONFAULTHANDLER",
    }
)
"""Of the interpreter's variables those that say where things are and how text is encoded. The others observe, debug or
change how code runs: PYTHONOPTIMIZE=2 alone takes away the docstrings that transformers edits at import."""


def command(code: str, *arguments: str, background: bool = False) -> list[str]:
    """The command line that runs `code`, which finds this package as this process has found it, in this interpreter."""
    if not sys.executable:
        raise EngineStartFailed(
            "This process does not know which Python runs it (sys.executable is empty), so it can start no engine: "
            "start one in a terminal with `djinn start MODEL`, and load it here."
        )
    run = [sys.executable, *_flags(), "-c", _FIND_PACKAGE + code, package_root()]
    return [SHELL, "-c", _BACKGROUND if background else _FOREGROUND, *run, *arguments]


def package_root() -> str:
    """The folder that this package lies in."""
    return str(Path(djinn_jupyter.__file__).resolve().parent.parent)


def environment() -> dict[str, str]:
    """This process's environment, without what watches it and what belongs to it alone."""
    return {name: value for name, value in os.environ.items() if _goes_along(name, value)}


def _goes_along(name: str, value: str) -> bool:
    if _WATCHERS.match(name) or _THIS_KERNEL.match(name):
        return False
    if name == "PYTHONHOME":  # the home of another Python ends this one before its first line
        return not sys.flags.ignore_environment and value.split(os.pathsep)[0] in (sys.base_prefix, sys.prefix)
    return name in _KEPT or not _INTERPRETER.match(name)


def _flags() -> list[str]:
    """Those by which this interpreter finds its packages; the working directory is never one of the places."""
    asked = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return ["-P", *(flag for flag, is_set in asked.items() if is_set)]
