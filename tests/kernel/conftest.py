"""Real kernels, as JupyterLab starts them, and a 24-layer model for them to share."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.families import build

SECONDS: Final = 100  # less than a test may take: the limit of a test ends the whole run, without the kernel's stacks
LOOK_SECONDS: Final = 1.0  # between two checks that the kernel's process is alive
DUMP_SECONDS: Final = 5.0


class Kernel:
    """One kernel process of one notebook. `do` runs a cell and returns the text that a user would read.

    What a kernel says comes from several threads in any order: a reader takes the messages that it waits for and leaves
    the others to other readers."""

    def __init__(self, notebook: str) -> None:
        self.notebook = notebook
        self._unread: list[dict[str, Any]] = []
        self._folder = TemporaryDirectory()
        self._stacks = Path(self._folder.name) / "stacks"
        self.manager = KernelManager()
        self.manager.start_kernel(
            env=self._environment(), extra_arguments=[f"--IPKernelApp.exec_lines={self._dumps()}"]
        )
        self.client = self._connected()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "JPY_SESSION_NAME": self.notebook}

    def _dumps(self) -> str:
        """A line for the kernel's start: SIGUSR1 then writes the stacks of all its threads."""
        return f"__import__('faulthandler').register({int(signal.SIGUSR1)}, file=open({str(self._stacks)!r}, 'w'))"

    def _connected(self) -> BlockingKernelClient:
        client = self.manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=SECONDS)
        return client

    def begin(self, cell: str) -> str:
        return str(self.client.execute(cell))

    def do(self, cell: str) -> list[str]:
        return self.outputs(self.begin(cell))

    def outputs(self, parent: str) -> list[str]:
        """Wait until a cell has ended; return the texts of its outputs in order, tracebacks and streams too."""
        texts: list[str] = []
        while True:
            message = self.take(lambda m: m["parent_header"].get("msg_id") == parent and m["msg_type"] != "debug_event")
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return texts
            texts.extend(_texts(message))

    def take(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next message on iopub that fits, of those unread and those to come; all others stay unread."""
        for message in self._unread:
            if fits(message):
                self._unread.remove(message)
                return message
        while not fits(message := self._message()):
            self._unread.append(message)
        return message

    def next_of(self, receive: Callable[..., dict[str, Any]], awaited: str) -> dict[str, Any]:
        """Return a channel's next message. Fails with the kernel's stacks where none comes, and at once where it has
        ended."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                return receive(timeout=LOOK_SECONDS)
            except queue.Empty:
                assert self.manager.is_alive(), f"the kernel has ended; {awaited} cannot come"
        raise AssertionError(f"{awaited} does not come; the kernel's threads are at:\n{self.stacks()}")

    def stacks(self) -> str:
        """Return where the kernel's threads are, innermost call first."""
        self.manager.signal_kernel(signal.SIGUSR1)
        time.sleep(DUMP_SECONDS)
        return self._stacks.read_text()

    def _message(self) -> dict[str, Any]:
        return self.next_of(self.client.get_iopub_msg, "a message on iopub")

    def restart(self) -> None:
        self.client.stop_channels()
        self._unread.clear()
        self.manager.restart_kernel(now=True)
        self.client = self._connected()

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._folder.cleanup()


def _texts(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    match message["msg_type"]:
        case "stream":
            return [content["text"]]
        case "display_data" | "execute_result" | "update_display_data":
            return [content["data"]["text/plain"]]
        case "error":
            return ["\n".join(content["traceback"])]
    return []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 24 layers, saved without a tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "llama-24"
    build("llama", layers=24).save_pretrained(folder)
    return folder


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Any]:
    started: list[Kernel] = []

    def start(notebook: str) -> Kernel:
        started.append(Kernel(str(tmp_path / notebook)))
        return started[-1]

    yield start
    for kernel in started:
        kernel.end()
