"""What a kernel and its notebook are called, from the traces Jupyter and VS Code leave. Imports neither of them."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path, PurePosixPath

import psutil

from djinn_jupyter.errors import UsageError


def holder_name() -> str:
    """The kernel's connection file, which survives its restart; without a kernel, this very process."""
    kernels = sys.modules.get("ipykernel.kernelapp")
    if kernels is not None and kernels.IPKernelApp.initialized():
        return Path(kernels.IPKernelApp.instance().abs_connection_file).stem
    return f"process-{os.getpid()}-{psutil.Process().create_time():.0f}"


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user that has no name


def default_session_name() -> str:
    """The path of this notebook. UsageError where there is none."""
    notebook = os.environ.get("JPY_SESSION_NAME") or sys.modules["__main__"].__dict__.get("__vsc_ipynb_file__")
    if not notebook:
        raise UsageError("No notebook gives this session its name: name it, as in engine.session('paris').")
    return str(notebook)


def label(name: str) -> str:
    """A session's name as it is shown: a notebook's path by its stem, another name as it is."""
    return PurePosixPath(name).stem if name.endswith(".ipynb") else name
