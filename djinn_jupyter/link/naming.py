"""Names of this kernel and its notebook, from variables that Jupyter and VS Code set. Imports neither of them."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Collection
from pathlib import Path

from djinn_jupyter.errors import UnknownSession, UsageError
from djinn_jupyter.wire.own import process_mark
from djinn_jupyter.wire.texts import distinct_labels as distinct_labels
from djinn_jupyter.wire.texts import few_of, in_quotes
from djinn_jupyter.wire.texts import label as label


def holder_name() -> str:
    """Return the name of the kernel's connection file, which survives a restart; or this process's pid and mark."""
    return _kernel_name() or f"process-{os.getpid()}-{process_mark(os.getpid())}"


def _kernel_name() -> str | None:
    kernels = sys.modules.get("ipykernel.kernelapp")
    if kernels is None or not kernels.IPKernelApp.initialized():
        return None
    return Path(kernels.IPKernelApp.instance().abs_connection_file).stem


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # in a container the user may have no name


def notebook_path() -> str | None:
    """Return the path of this notebook; None outside a notebook."""
    found = os.environ.get("JPY_SESSION_NAME") or sys.modules["__main__"].__dict__.get("__vsc_ipynb_file__")
    return str(found) if found else None


def has_sidebar() -> bool:
    """Return whether a sidebar may be beside this notebook: Jupyter Server, which JupyterLab and Notebook 7 show, names
    it, and it is not Colab's page."""
    return bool(os.environ.get("JPY_SESSION_NAME")) and "google.colab" not in sys.modules


def is_static() -> bool:
    """Return whether DJINN_STATIC asks for final forms alone."""
    return os.environ.get("DJINN_STATIC", "0") not in ("", "0")


def default_session_name() -> str:
    """Return the path of this notebook. Without one (nbconvert, papermill, a console) return the kernel's name, and in
    IPython without a kernel the process's. UsageError in plain Python."""
    name = notebook_path() or _kernel_name() or _terminal_name()
    if name is None:
        raise UsageError("No notebook gives this session its name: name it, as in engine.session('paris').")
    return name


def _terminal_name() -> str | None:
    shells = sys.modules.get("IPython.core.interactiveshell")
    return f"ipython-{os.getpid()}" if shells and shells.InteractiveShell.initialized() else None


def called(name: str, sessions: Collection[str]) -> list[str]:
    """Return the sessions with that full name, or with that displayed name."""
    shown = distinct_labels(sessions)
    return [name] if name in sessions else [one for one in sessions if name in (shown[one], label(one))]


def the_one(name: str, sessions: Collection[str]) -> str:
    """Return the one session with that full or displayed name. Raises UnknownSession."""
    shown, found = distinct_labels(sessions), called(name, sessions)
    if len(found) > 1:
        meant = " or ".join(sorted(shown[one] for one in found))
        raise UnknownSession(f"{in_quotes(name)} may be {meant}; write it with its folder.")
    if not found:
        raise UnknownSession(f"There is no session {in_quotes(name)}. There are: {few_of(shown.values(), name)}.")
    return found[0]
