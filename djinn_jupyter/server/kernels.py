"""Jupyter's kernels on this server: their execution states and their notebooks.

A kernel's holder name is the stem of its connection file, which jupyter_client builds from the kernel's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from jupyter_core.utils import ensure_async
from msgspec.structs import replace

from djinn_jupyter.server.messages import KernelDescription
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.requests import OwnerRequest, Request

HOLDER_PREFIX = "kernel-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels at one moment: execution state and contents path by kernel id. `root` is the folder that the server
    shows, None where its contents are not local files."""

    states: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    root: PurePath | None = None

    def holding(self, session: SessionDescription) -> KernelDescription | None:
        """Return the kernel of this server that holds the session, or None."""
        number = (session.holder or "").removeprefix(HOLDER_PREFIX)
        return KernelDescription(id=number, state=self.states[number]) if number in self.states else None

    def asked_by(self, notebook: str, request: Request) -> Request:
        """Return the request as it is asked for a notebook, given by its contents path: with its kernel and its file
        where the request may need to be its session's owner's."""
        if not isinstance(request, OwnerRequest):
            return request
        kernel = next((kernel for kernel, path in self.paths.items() if path == notebook), None)
        return replace(
            request,
            for_holder=None if kernel is None else HOLDER_PREFIX + kernel,
            for_notebook=notebook if self.root is None else str(self.root / notebook),
        )

    def notebook_of(self, session: SessionDescription) -> str | None:
        """Return the contents path of the notebook whose kernel holds the session, else of the notebook that it is
        named after, else None."""
        kernel = self.holding(session)
        if kernel is not None and kernel.id in self.paths:
            return self.paths[kernel.id]
        return self._contents_path(session.name)

    def has_closed(self, session: SessionDescription, last_holder: str | None) -> bool:
        """Return whether no kernel or process has a resting session open, and its notebook is known to have no kernel.
        An engine takes a kernel that is silent for long for gone: the kernel of its `last_holder` may live."""
        number = (last_holder or "").removeprefix(HOLDER_PREFIX)
        if session.holder is not None or session.state == "running" or session.progress is not None:
            return False
        if number in self.states or self._contents_path(session.name) in self.paths.values():
            return False
        notebook = session.notebook and self._contents_path(session.notebook)
        return session.notebook is None or (notebook is not None and notebook not in self.paths.values())

    def _contents_path(self, file: str) -> str | None:
        named = PurePath(file)
        if self.root is None or not named.is_absolute() or not named.is_relative_to(self.root):
            return None
        return named.relative_to(self.root).as_posix()


async def read_kernels(kernel_manager: Any, session_manager: Any, root: str | None) -> Kernels:
    """Read the server's kernel manager and session manager. Their exceptions pass through."""
    kernels = await ensure_async(kernel_manager.list_kernels())
    sessions = await ensure_async(session_manager.list_sessions())
    return Kernels(
        states={kernel["id"]: kernel["execution_state"] for kernel in kernels},
        paths={session["kernel"]["id"]: session["path"] for session in sessions if session["type"] == "notebook"},
        root=PurePath(root) if root else None,
    )
