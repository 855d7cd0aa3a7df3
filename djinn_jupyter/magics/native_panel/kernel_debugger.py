"""ipykernel's debugger: where its requests come in, and where its events go out. All that is private to ipykernel is
named here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

from djinn_jupyter.errors import MissingDependency

KNOWN: Final = ("7.4.",)  # versions of ipykernel whose control channel this was tested with
Message = dict[str, Any]
Answer = Callable[[Message], Awaitable[Message]]


class KernelDebugger:
    """The debugger of a shell's kernel. MissingDependency where there is none, or one of an unknown version, which
    stays as it is."""

    def __init__(self, shell: Any) -> None:
        self._kernel = _known_kernel(shell)
        self.answer: Answer = self._kernel.do_debug_request  # Python's own, also while it is covered

    @property
    def is_stopped(self) -> bool:
        """True while Python itself stands at a breakpoint."""
        return bool(self._kernel.debugger.stopped_threads)

    def cover(self, answer: Answer) -> None:
        """Answer the requests of the control channel in its place, on the control thread."""
        self._kernel.do_debug_request = answer

    def uncover(self) -> None:
        del self._kernel.do_debug_request

    def publish(self, event: str, body: Message) -> None:
        """Send an event to JupyterLab from the control thread, as ipykernel's own debugger does."""
        said = {"type": "event", "seq": 0, "event": event, "body": body}
        self._kernel.control_thread.io_loop.add_callback(self._kernel._publish_debug_event, said)


def _known_kernel(shell: Any) -> Any:
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(kernel, "debugger", None) is None:
        raise MissingDependency(
            "The debugger panel needs a Jupyter kernel with ipykernel's debugger; there is none here."
        )
    if not version("ipykernel").startswith(KNOWN):
        known = ", ".join(f"{one}x" for one in KNOWN)
        raise MissingDependency(
            f"The debugger panel is known to work with ipykernel {known}; it stays off with {version('ipykernel')}."
        )
    return kernel
