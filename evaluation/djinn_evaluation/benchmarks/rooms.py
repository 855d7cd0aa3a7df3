"""The rooms that a prompt crosses: modules that run between the receipt of a `Run` and the first layer."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

import djinn_jupyter as dj
from djinn_evaluation import EVALUATION

PROMPT: Final = "the cat saw the dog"
WRITTEN_TO: Final = "DJINN_ROOMS"
PACKAGE: Final = "djinn_jupyter"


def rooms(folder: Path, rounds: int) -> list[list[str]]:
    """Run a prompt in each of several sessions of a demo engine; return the modules that each crossed, in order."""
    (folder / "sitecustomize.py").write_text("from djinn_evaluation.benchmarks.rooms import watch\nwatch()\n")
    noted = folder / "rooms"
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", WRITTEN_TO)}
    path = [str(folder), str(EVALUATION), *filter(None, [before["PYTHONPATH"]])]
    os.environ.update({"PYTHONPATH": os.pathsep.join(path), WRITTEN_TO: str(noted)})
    try:
        engine = dj.load("demo", threads=1)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        for number in range(rounds):
            engine.session(f"rooms-{number}").run(PROMPT, max_new_tokens=1)
        return [line.split() for line in noted.read_text().splitlines()]
    finally:
        engine.stop(force=True)


def watch() -> None:
    """Note the modules that run, in all threads, from the receipt of the prompt to the first layer's forward."""
    if WRITTEN_TO not in os.environ or "--launcher-pipe" not in " ".join(sys.orig_argv):
        return
    import zmq

    crossed: dict[str, None] = {}
    under_way = threading.Event()
    received = zmq.Socket.recv

    def recv(self: Any, *arguments: Any, **options: Any) -> Any:
        frame = received(self, *arguments, **options)
        if PROMPT.encode() in bytes(memoryview(frame)):
            under_way.set()
        return frame

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not under_way.is_set():
            return
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(f"{PACKAGE}."):
            crossed[name] = None
        elif frame.f_code.co_name == "forward" and _is_a_layer(frame.f_locals.get("self")):
            under_way.clear()
            with Path(os.environ[WRITTEN_TO]).open("a") as file:
                file.write(" ".join(crossed) + "\n")
            crossed.clear()

    zmq.Socket.recv = recv
    threading.setprofile(note)
    sys.setprofile(note)


def _is_a_layer(owner: object) -> bool:
    return type(owner).__name__.endswith(("DecoderLayer", "Block"))


if __name__ == "__main__":
    for crossed in rooms(Path(sys.argv[1]), int(sys.argv[2])):
        print(*crossed)
