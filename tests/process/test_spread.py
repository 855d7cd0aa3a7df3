"""A sweep is spread over two engine processes, of which one is killed on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import await_end

pytestmark = pytest.mark.processes
CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid"}
PAIRS = [(f"The capital of {a} is", f"The capital of {b} is") for a in CAPITALS for b in CAPITALS if a != b]


def test_a_killed_engine_leaves_its_pairs_to_the_other(runtime: Path) -> None:
    one, other = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)
    asked: dict[str, Any] = {"pairs": PAIRS, "site": "resid_post", "metric": "logit(' Paris')", "mode": "exact"}
    asked["over"] = ("layer", "position")
    killed: list[int] = []

    def kill(grid: dj.Grid, done: int, total: int) -> None:
        assert other.entry is not None
        if not killed:
            killed.append(other.entry.pid)
            os.kill(other.entry.pid, signal.SIGKILL)

    spread = dj.sweep(one, beside=[other], **asked, on_progress=kill)
    assert killed
    assert other.entry is not None
    await_end(other.entry)
    assert spread.is_whole
    assert "An engine was lost, and another computed its pair" in " ".join(spread.notes)
    assert spread.values.tobytes() == dj.sweep(one, **asked).values.tobytes()
    assert one.sessions() == ()
