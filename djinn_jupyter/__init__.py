"""Djinn for Jupyter: a debugger for transformer inference that stops inside the forward pass.

    import djinn_jupyter as dj
    session = dj.load("demo").session("paris")

Importing this imports neither torch nor IPython nor numpy: every name below is found when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from djinn_jupyter._version import __version__

if TYPE_CHECKING:
    from djinn_jupyter.client.edits import add, clamp, patch_from, project_out, scale, set_to, zero
    from djinn_jupyter.client.engine import RemoteEngine
    from djinn_jupyter.client.loading import attach, engines, load
    from djinn_jupyter.client.session import RemoteSession
    from djinn_jupyter.client.stops import Finished, Interrupted, Paused
    from djinn_jupyter.errors import DjinnError

__all__ = [
    "__version__",
    "load",
    "engines",
    "attach",
    "scale",
    "add",
    "set_to",
    "zero",
    "clamp",
    "project_out",
    "patch_from",
    "RemoteEngine",
    "RemoteSession",
    "Paused",
    "Finished",
    "Interrupted",
    "DjinnError",
]

_HOMES = {
    "load": "client.loading",
    "engines": "client.loading",
    "attach": "client.loading",
    "scale": "client.edits",
    "add": "client.edits",
    "set_to": "client.edits",
    "zero": "client.edits",
    "clamp": "client.edits",
    "project_out": "client.edits",
    "patch_from": "client.edits",
    "RemoteEngine": "client.engine",
    "RemoteSession": "client.session",
    "Paused": "client.stops",
    "Finished": "client.stops",
    "Interrupted": "client.stops",
    "DjinnError": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext djinn_jupyter`"""
    import_module(f"{__name__}.magics").load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext djinn_jupyter`"""
    import_module(f"{__name__}.magics").unload_ipython_extension(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """What a Jupyter server asks an enabled extension for."""
    return [{"module": __name__, "app": import_module(f"{__name__}.server.extension").DjinnServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the built sidebar lies, for `jupyter labextension develop`."""
    return [{"src": "labextension", "dest": "djinn-jupyter"}]
