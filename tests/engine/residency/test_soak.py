"""Mixed work over a small slab for a long time: every line ends as it does undisturbed, and nothing grows.

`DJINN_SOAK_SECONDS` says for how long; 1,200 without it.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import forget, journal, written
from tests.engine.residency.evicting import made, nothing_left
from tests.families import build

SECONDS = float(os.environ.get("DJINN_SOAK_SECONDS", "1200"))
PROMPTS = [tokens(20 + 30 * n, seed=n) for n in range(6)]
NAMES = [f"s{n}" for n in range(14)]
NEW = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    resident: int
    files: int
    threads: int

    @classmethod
    def read(cls) -> Usage:
        me = psutil.Process()
        return cls(resident=me.memory_info().rss, files=me.num_fds(), threads=me.num_threads())


def undisturbed() -> list[tuple[Any, torch.Tensor]]:
    desk, lines = build_desk(build("llama")), []
    for prompt in PROMPTS:
        desk.open()
        desk.run(prompt, NEW)
        lines.append((desk.session().tokens[:], desk.logits()))
    return lines


class Office:
    """People at their notebooks, one move at a time."""

    def __init__(self, desk: Desk, chance: random.Random) -> None:
        self.desk, self.chance, self.expected = desk, chance, undisturbed()
        self.lines: dict[str, int] = {}
        self.ended = 0

    def move(self) -> None:
        name = self.chance.choice(NAMES)
        if name not in self.lines:
            self.begin(name)
            return
        self.chance.choice([self.finish, self.leave, self.leave, self.come, self.look, self.branch, self.close])(name)

    def begin(self, name: str) -> None:
        self.desk.open(name)
        self.desk.stop_at(3, when="step == 1", name=name)
        self.lines[name] = self.chance.randrange(len(PROMPTS))
        self.desk.run(PROMPTS[self.lines[name]], NEW, name)

    def finish(self, name: str) -> None:
        if self.desk.session(name).state == "paused":
            self.desk.resume(name, free=True)
        made, logits = self.expected[self.lines[name]]
        assert self.desk.session(name).tokens == made
        assert torch.equal(self.desk.logits(name), logits)
        self.ended += 1

    def leave(self, name: str) -> None:
        self.desk.swap_out(name, self.chance.choice(["host", "disk"]))

    def come(self, name: str) -> None:
        self.desk.swap_in(name)

    def look(self, name: str) -> None:
        if self.desk.session(name).state == "paused":
            assert self.desk.value(name=name).isfinite().all()

    def branch(self, name: str) -> None:
        self.desk.fork("branch", name)
        self.lines["branch"] = self.lines[name]
        self.finish("branch")
        self.close("branch")

    def usage(self) -> Usage:
        """Return the usage of an engine without sessions: each has a file in the journal."""
        for name in list(self.lines):
            self.close(name)
        written(self.desk)
        return Usage.read()

    def close(self, name: str) -> None:
        self.desk.close(name)
        del self.lines[name]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_after_long_mixed_work_nothing_has_grown(tmp_path: Path, record_property: Any) -> None:
    weights = build_desk(build("llama")).engine.weights.statistics().bytes_total
    desk = made(device_memory=weights + (1 << 20), host_memory=1 << 20, disk_memory=64 << 20)
    journal(desk, tmp_path)
    office = Office(desk, random.Random(4))
    begun = time.monotonic()
    early: Usage | None = None
    while (lasted := time.monotonic() - begun) < SECONDS:
        office.move()
        desk.engine.check_invariants()
        if early is None and lasted > SECONDS / 3:
            early = office.usage()
    late = office.usage()
    record_property("soak", f"{office.ended} lines ended; {early} after a third, {late} at the end")
    assert (late.files, late.threads) == (early.files, early.threads)
    assert late.resident < early.resident + (64 << 20)
    assert office.ended > SECONDS / 4
    assert nothing_left(desk)
    assert [slab.pages_in_use for slab in desk.engine.slabs] == [0] * len(desk.engine.slabs)
    assert desk.ask(ask.Open(session="still serves")).session.state == "idle"
    forget(desk)
