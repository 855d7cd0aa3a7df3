"""A JupyterLab server for tests: on loopback, with a token, in a folder of its own, away from the user's settings."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SETTLE_SECONDS, STARTS = 180, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LabServer:
    """The address of a running server, its token, and the folder that it shows."""

    url: str
    token: str
    folder: Path

    def address(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{notebook}?token={self.token}&reset"

    def reloaded(self, notebook: str) -> str:
        """Return `address` with the saved layout of the workspace."""
        return self.address(notebook).removesuffix("&reset")

    def in_notebook_7(self, notebook: str) -> str:
        return f"{self.url}/notebooks/{notebook}?token={self.token}"

    def running_kernels(self) -> str:
        return _get(f"{self.url}/api/kernels?token={self.token}")


@contextmanager
def lab_server(
    folder: Path,
    *,
    log: Path,
    kernels: bool = True,
    djinn: bool = True,
    application: str = "jupyterlab",
    base_url: str = "/",
) -> Iterator[LabServer]:
    """Serve `folder` until the block ends. Without `kernels` the server knows no kernel to start, without `djinn` it
    has no Djinn extension. `application` is the module: jupyterlab, or notebook. `base_url` begins and ends in /."""
    token = secrets.token_hex(16)
    for _ in range(STARTS):  # another program may take the port before the server has it
        port = _free_port()
        server = LabServer(url=f"http://127.0.0.1:{port}{base_url.rstrip('/')}", token=token, folder=folder)
        command = [sys.executable, "-m", application, f"--ServerApp.base_url={base_url}"]
        process = _start([*command, *_options(port, token, folder, kernels, djinn)], folder.parent, log)
        try:
            if _answers(server, process, log):
                yield server
                return
        finally:
            _stop(process)
    raise AssertionError(f"JupyterLab ended {STARTS} times; its log:\n{log.read_text()[-3000:]}")


def _start(command: list[str], place: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment(place)
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server. One that is asked to end while it reads or writes a notebook may wait for ever for the thread
    that does it: jupyter_server stops its loop without joining anyio's workers, which are no daemons."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def environment(place: Path) -> dict[str, str]:
    """Return this process's, less the variable of tests without a browser; with settings that ask nothing."""
    silent = place / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    silent.parent.mkdir(parents=True, exist_ok=True)
    silent.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    kept = {key: value for key, value in os.environ.items() if key != "DJINN_STATIC"}
    places = {"JUPYTERLAB_SETTINGS_DIR": place / "settings", "JUPYTERLAB_WORKSPACES_DIR": place / "workspaces"}
    return kept | {name: str(path) for name, path in places.items()}


def _options(port: int, token: str, folder: Path, kernels: bool, djinn: bool) -> list[str]:
    options = [
        "--no-browser",
        "--expose-app-in-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={token}",
        "--ServerApp.terminals_enabled=False",
        "--LabApp.extension_manager=readonly",
    ]
    if not kernels:
        options += ["--KernelSpecManager.ensure_native_kernel=False", "--KernelSpecManager.allowed_kernelspecs=none"]
    if not djinn:
        options.append("--ServerApp.jpserver_extensions=djinn_jupyter=False")
    return options


def _answers(server: LabServer, process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until the server answers; False where it has ended. It is on its own port: the status wants its token."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        try:
            _get(f"{server.url}/api/status?token={server.token}", timeout=5)
            return True
        except OSError:  # not listening yet, or too busy to answer in time
            time.sleep(0.1)
    raise AssertionError(f"JupyterLab does not answer; its log:\n{log.read_text()[-3000:]}")


def _get(address: str, timeout: float = SETTLE_SECONDS) -> str:
    with urllib.request.urlopen(address, timeout=timeout) as answer:
        body: bytes = answer.read()
    return body.decode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
