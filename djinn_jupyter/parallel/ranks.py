"""The processes of the other ranks: started, ordered, watched and ended. Each ends by itself once this process has
gone.

A rank that dies takes its part of the model with it. No pass can continue, so the engine starts again, and the
sessions, which are whole on rank 0 and in the journal, return.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeVar

from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import EngineBroken, ModelRefused
from djinn_jupyter.parallel import group as orders

MODULE: Final = "djinn_jupyter.parallel.rank"
NOTICE_SECONDS: Final = 10.0  # until the end of a process is noticed, after an exchange with it has failed
Answer = TypeVar("Answer", bound=orders.FromRank)


class RankLost(RuntimeError):
    """A rank has ended, or no longer follows the leader."""


class Ranks:
    """Ranks 1 to n-1, as child processes. `lost` is the sentence on an ended one, None while all live."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.lost: str | None = None
        self._ending, self._gone = False, threading.Event()
        self._on_loss: list[Callable[[], None]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="djinn-ranks-")
        self.meeting = str(Path(self._folder.name) / "meeting")
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, count):
            self._start(rank)

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-P", "-m", MODULE, "--pipe", str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)
        threading.Thread(target=self._watch, args=(rank, process), name=f"djinn-rank-{rank}", daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._ending:
            self._lose(f"rank {rank} of {self.count}, process {process.pid}, {_how(status)}")

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            self._gone.set()
        for call in self._on_loss:
            call()

    def on_loss(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, once a rank is lost."""
        self._on_loss.append(call)

    def load(self, config: EngineConfig, devices: list[str]) -> None:
        """Order each rank to load the model, while this process continues."""
        keeps_no_files = dataclasses.replace(config, data_folder=None)
        for rank, pipe in enumerate(self._pipes, 1):
            self._to(pipe, orders.LoadModel(config=keeps_no_files, rank=rank, ranks=self.count, device=devices[rank]))

    def require_loaded(self, identity: bytes, model: str) -> None:
        """Wait until all ranks have loaded the model. Raises ModelRefused where one has read another."""
        if any(answer.identity != identity for answer in self._answers(orders.ModelLoaded)):
            raise ModelRefused(f"The ranks have read different weights of {model}: its files change; load it again.")

    def require_parts(self) -> None:
        """Wait until all ranks have their part."""
        self._answers(orders.PartTaken)

    def cut(self, layers: tuple[str, ...], columns: tuple[str, ...], rows: tuple[str, ...]) -> None:
        self.send(orders.TakePart(layers=layers, columns=columns, rows=rows, meeting=self.meeting))

    def send(self, message: orders.FromLeader) -> None:
        """Send a message to all ranks. Raises RankLost."""
        for pipe in self._pipes:
            self._to(pipe, message)

    def _to(self, pipe: Connection, message: orders.FromLeader) -> None:
        try:
            orders.send(pipe, message)
        except OSError as error:
            raise self.loss(error) from error

    def _answers(self, expected: type[Answer]) -> list[Answer]:
        found: list[Answer] = []
        for rank, pipe in enumerate(self._pipes, 1):
            try:
                answer = orders.next_answer(pipe)
            except (EOFError, OSError) as error:
                raise self.loss(error) from error
            if not isinstance(answer, expected):
                why = answer.reason if isinstance(answer, orders.RankFailed) else f"it answered {type(answer).__name__}"
                raise ModelRefused(f"Rank {rank} of {self.count} could not take its part: {why}")
            found.append(answer)
        return found

    def loss(self, error: Exception) -> RankLost:
        """Return the error of a failed exchange, which names the ended rank, if any."""
        self._gone.wait(NOTICE_SECONDS)
        self._lose(f"a rank cannot be reached ({error})")
        return RankLost(str(self.lost))

    def require_all(self) -> None:
        """Raise EngineBroken where a rank is lost."""
        if self.lost is not None:
            raise EngineBroken(
                f"{self.lost[:1].upper()}{self.lost[1:]}, and no pass can go on without it, so the engine begins anew: "
                "load the model again; its sessions come back as they were last kept."
            )

    def end(self) -> None:
        """End all ranks, and wait for it. They have nothing to keep."""
        self._ending = True
        for process in self._processes:
            process.kill()
            process.wait()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
