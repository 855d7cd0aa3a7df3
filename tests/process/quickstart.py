"""The quickstart in Python, with each step's bits in a digest. As a program: the place of an engine, the name of a
session and how often it is played; it says a line for each time."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

import djinn_jupyter as dj

PROMPT = "The capital of France is"


def play(session: Any) -> str:
    """Return a digest of all that the session said, and of how it stands at the end."""
    said = hashlib.sha256()

    def note(*values: Any) -> None:
        for value in values:
            array = value if isinstance(value, np.ndarray) else np.asarray(repr(value))
            said.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())

    session.breakpoint("resid_post.4", when="step == 0")
    session.steer("resid_post.1", dj.scale(1.5))
    stop = session.run(PROMPT, max_new_tokens=8)
    note(stop.hidden, stop.lens(3))
    session.edit(dj.scale(0.0), positions=-1)
    edited = session.resume()
    note(edited.tokens, edited.logits)
    note(session.back().hidden)
    finished = session.resume()
    note(finished.tokens, finished.logits)
    stands = session.describe()
    note(stands.tokens, len(stands.rules), len(stands.breakpoints), len(session.history().stops))
    return said.hexdigest()


def main(place: str, name: str, times: int) -> None:
    engine = dj.load("demo") if place == "here" else dj.connect(f"tcp://{place}")
    for _ in range(times):
        sys.stdout.write(f"{play(engine.session(name, fresh=True))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
