"""Start a Python process of this package that runs the same under a debugger or profiler of the parent process.

Debuggers and profilers rewrite command lines that begin with Python, in `subprocess` and in `os` (pydevd turns them
into `pydevd.py --multiprocess ...`, whose process then waits for an editor), and pass themselves on through the
environment. So the command line begins with a shell, which these tools leave alone, and the environment is passed
without their variables.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from djinn_jupyter import _version
from djinn_jupyter.errors import EngineStartFailed

SHELL: Final = "/bin/sh"
_FOREGROUND: Final = 'exec "$0" "$@"'
_BACKGROUND: Final = '"$0" "$@" &'  # the shell ends at once, so no process of ours is the parent of the new one
_FIND_PACKAGE: Final = "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "

_WATCHERS: Final = re.compile(r"COVERAGE_|COV_CORE_|PYDEVD|DEBUGPY_|VIZTRACER|SCALENE|MEMRAY")
_THIS_KERNEL: Final = re.compile(r"JPY_|MPLBACKEND$|__PYVENV_LAUNCHER__$")
_FOLDER: Final = re.compile(r"(JUPYTER_\w+_DIR|HF_\w*(HOME|CACHE)|XDG_\w+_(HOME|DIR)|TMPDIR)$")
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
"""The interpreter's variables for paths and text encoding. The others observe, debug or change how code runs:
PYTHONOPTIMIZE=2 alone removes the docstrings that transformers edits at import."""


def command(code: str, *arguments: str, background: bool = False) -> list[str]:
    """Return the command line that runs `code` in this interpreter, with this package's folder on its path."""
    if not sys.executable:
        raise EngineStartFailed(
            "This process does not know which Python runs it (sys.executable is empty), so it can start no engine: "
            "start one in a terminal with `djinn start MODEL`, and load it here."
        )
    run = [sys.executable, *_flags(), "-c", _FIND_PACKAGE + code, package_root()]
    return [SHELL, "-c", _BACKGROUND if background else _FOREGROUND, *run, *arguments]


def package_root() -> str:
    """Return the folder that contains this package."""
    return str(Path(_version.__file__).resolve().parent.parent)


def environment() -> dict[str, str]:
    """Return this process's environment without the variables of debuggers and profilers and of this kernel. Folders
    are absolute, as the new process has another working directory."""
    return {name: _meant(name, value) for name, value in os.environ.items() if _goes_along(name, value)}


def _meant(name: str, value: str) -> str:
    return os.path.abspath(value) if _FOLDER.match(name) and value and not value.startswith("~") else value


def _goes_along(name: str, value: str) -> bool:
    if _WATCHERS.match(name) or _THIS_KERNEL.match(name):
        return False
    if name == "PYTHONHOME":  # set to another Python's home, it makes this interpreter fail at startup
        return not sys.flags.ignore_environment and value.split(os.pathsep)[0] in (sys.base_prefix, sys.prefix)
    return name in _KEPT or not _INTERPRETER.match(name)


def _flags() -> list[str]:
    """Return the flags that decide where this interpreter finds packages; `-P` excludes the working directory."""
    asked = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return ["-P", *(flag for flag, is_set in asked.items() if is_set)]
