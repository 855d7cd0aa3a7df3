"""Engine processes that begin in a tenth of the time: forked from one that has imported torch and computed nothing.

As a program it takes messages from a socket: what the engine is to be started with, and the files that it has open. It
forks the engine, and answers with the number of its process.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.engine.system.process import importing
from djinn_jupyter.link import starting

ROOT: Final = Path(__file__).parents[2]
FAKE_SITE: Final = Path(__file__).parent / "fake_site"
HOME: Final = os.environ.get("JUPYTER_RUNTIME_DIR", "")  # what is started there ends with the run
KNOWN: Final = {"", str(ROOT), str(ROOT / "evaluation"), str(FAKE_SITE)}  # the paths that an engine here may be given


class Nursery:
    """The forking process, seen from a test. `errors` is the file that the engines' standard error goes to, if another
    than that of the test."""

    def __init__(self, errors: Path | None = None) -> None:
        self._errors = None if errors is None else errors.open("ab")

    def start(self, count: int, *arguments: str, forcing: float | None = None) -> list[str]:
        """Start engines at the same time; return the notices in which they said that they answer. They sleep `forcing`
        seconds instead of waiting for the disk."""
        output, readers = 2 if self._errors is None else self._errors.fileno(), list[int]()
        for _ in range(count):
            reader, writer = os.pipe()
            readers.append(reader)
            _forking().fork([*arguments, f"--launcher-pipe={writer}"], output, (writer,), forcing)
            os.close(writer)
        told = []
        for reader in readers:
            with os.fdopen(reader) as notices:
                told.append(list(notices)[-1])
        return told

    def end(self) -> None:
        if self._errors is not None:
            self._errors.close()


def spawn(arguments: list[str], *, log: starting.Log, keep_open: tuple[int, ...]) -> int:
    """A double of `starting._spawn`: an engine whose start is not what a test is about is forked."""
    return _forking().fork(arguments, log.descriptor, keep_open)


class _Forking:
    """The process from which engines are forked; it ends with this one."""

    def __init__(self) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        own["JUPYTER_RUNTIME_DIR"] = HOME
        command = [sys.executable, "-m", "tests.process.nursery", str(there.fileno())]
        descriptors = (there.fileno(),)
        self._process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **own}, pass_fds=descriptors)
        there.close()

    def fork(self, arguments: list[str], output: int, opened: Sequence[int], forcing: float | None = None) -> int:
        environment = starting.environment()
        assert {*environment.get("PYTHONPATH", "").split(os.pathsep)} <= KNOWN
        command = starting.command(starting.RUN_ENGINE, *arguments)
        python = command.index(sys.executable)  # behind the shell
        asked = {
            "arguments": arguments,
            "command": command[python:],
            "environment": environment,
            "opened": list(opened),
            "forcing": forcing,
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [output, *opened])
            return int(self._socket.recv(64))


@functools.cache
def _forking() -> _Forking:
    return _Forking()


def _serve(control: socket.socket) -> None:
    with importing():
        import torch
        from transformers.models.llama import modeling_llama  # noqa: F401

        from djinn_jupyter.engine.process import build, daemon  # noqa: F401  what every engine imports

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 2**20, 16)
        if not asked:
            return
        number = os.fork()
        if number == 0:
            control.close()
            _become_an_engine(json.loads(asked), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(number).encode())


def _become_an_engine(asked: dict[str, Any], descriptors: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    output, *opened = descriptors
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    if asked["forcing"] is not None:
        os.fsync = os.fdatasync = lambda descriptor: time.sleep(asked["forcing"])  # type: ignore[assignment]
    here = {f"={there}": f"={number}" for there, number in zip(asked["opened"], opened, strict=True)}
    words = [_with_ends(word, here) if word.startswith("--launcher-") else word for word in asked["arguments"]]
    sys.orig_argv = asked["command"]  # which one that begins anew executes
    status = 1
    try:
        _have_threads(words)
        if str(FAKE_SITE) in os.environ.get("PYTHONPATH", ""):
            exec(compile((FAKE_SITE / "sitecustomize.py").read_text(), "sitecustomize", "exec"), {})  # noqa: S102
        from djinn_jupyter.engine.__main__ import main

        status = main(words)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _with_ends(word: str, here: dict[str, str]) -> str:
    name, _, number = word.partition("=")
    return name + here[f"={number}"]


def _have_threads(words: list[str]) -> None:
    """Compute with as many threads as an engine that imports torch itself."""
    import torch

    told = [word.partition("=")[2] for word in words if word.startswith("--threads=")]
    own = os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(int(told[0] if told else own or os.cpu_count() or 1))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
