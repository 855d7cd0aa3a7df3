"""The step of races: random interleavings of computing and copying on the device of the run, and the same under CUDA's
compute-sanitizer.

racecheck sees only shared memory within a kernel; that copies and kernels of several streams are in order is what the
interleavings show. Their logic, without a GPU's streams, runs on the CPU with the engine's threads."""

from __future__ import annotations

import json
import queue
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from time import monotonic
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu.steps import Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_most
from djinn_jupyter.engine.memory.kv.geometry import GroupGeometry, LayerGeometry
from djinn_jupyter.engine.memory.kv.slab import Page, Slab
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import Moved, ThreadMover
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.copy_engine import CopyEngine, copy_engine_for
from djinn_jupyter.engine.memory.weights.host_weights import HostRun, weights_of
from djinn_jupyter.engine.memory.weights.streamed import Ring
from djinn_jupyter.engine.residency.residency import memory_of
from tests.device import DEVICE

PAGES, SLOTS, DEEDS = 7, 4, 40
GEOMETRY: Final = GroupGeometry.lay_out(
    [LayerGeometry(cache_layer=0, kind="full", kv_heads=8, key_dim=64, value_dim=64, dtype=torch.float16)],
    page_positions=32,
)
BLOCKS, RING_SLOTS, PASSES = 5, 2, 4
VERBS: Final = ("write", "read", "store", "leave", "load", "settle", "compute")
MOST_CYCLES = 200_000  # a tenth of a millisecond of a GPU's


def computed() -> None:
    """Keep the device busy for a random time, so that the host and the copies run ahead of it."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(random.randrange(MOST_CYCLES))


class Pages:
    """More pages than slots. `right` has, on the device, whether each reading found the page's last write."""

    def __init__(self, by_chance: random.Random) -> None:
        self._by_chance, self._ended = by_chance, queue.SimpleQueue[Moved]()
        self._slab = Slab(GEOMETRY, DEVICE, SLOTS * GEOMETRY.page_bytes, segment_pages=1, poison=True)
        host = HostTier(2 * PAGES * GEOMETRY.page_bytes, memory=memory_of(DEVICE))
        self.tiers = Tiers(host, None, ThreadMover(self._ended.put, DEVICE), DEVICE)
        self._pages: list[Page] = []
        self._values: list[int] = []
        self.right: list[Tensor] = []
        while len(self._pages) < PAGES:
            self._one_more()

    def _one_more(self) -> None:
        if len(self._pages) >= SLOTS:
            self._away(self._pages[len(self._pages) - SLOTS])
        self._pages.append(self._slab.page(*self._slab.allocate(1)))
        self._values.append(0)
        self.write(len(self._pages) - 1)

    def _away(self, page: Page) -> None:
        self.tiers.store([page], "host")
        while self.tiers.moving:
            self.settle()
        page.leave()

    def act(self) -> None:
        verb: Callable[[int], None] = getattr(self, self._by_chance.choice(VERBS))
        verb(self._by_chance.randrange(PAGES))

    def write(self, which: int) -> None:
        page = self._pages[which]
        if page.resident:
            self._values[which] = self._by_chance.randrange(251)
            page.span().view().fill_(self._values[which])
            page.wrote()

    def read(self, which: int) -> None:
        if self._pages[which].resident:
            self.right.append((self._pages[which].span().view() == self._values[which]).all())

    def store(self, which: int) -> None:
        if self._pages[which].resident:
            self.tiers.store([self._pages[which]], "host")

    def leave(self, which: int) -> None:
        page = self._pages[which]
        if page.resident and page.copies and not page.moving:
            page.leave()

    def load(self, which: int) -> None:
        if self._slab.segments.free:
            self.tiers.load([self._pages[which]])

    def settle(self, which: int = 0) -> None:
        """Account for a batch that has ended; wait for one where one is under way."""
        if self.tiers.moving:
            moved = self._ended.get()
            if moved.error is not None:
                raise moved.error
            self.tiers.settle(moved)

    def compute(self, which: int) -> None:
        computed()

    def end(self) -> None:
        """Bring each page back in turn, and read it."""
        for number, page in enumerate(self._pages):
            while self.tiers.moving:
                self.settle()
            if not page.resident and not self._slab.segments.free:
                self._away(next(other for other in self._pages if other.resident))
            self.load(number)
            while self.tiers.moving:
                self.settle()
            self.read(number)
        self.tiers.stop()


def of_pages(seed: int) -> list[Tensor]:
    """Do random deeds; return the readings."""
    world = Pages(random.Random(seed))
    for _ in range(DEEDS):
        world.act()
    world.end()
    return world.right


def blocks() -> list[HostRun]:
    """Return blocks of weights in the ring's form; every number of block n is n + 1."""
    made = []
    for number in range(BLOCKS):
        block = nn.Linear(64 + number, 256, dtype=torch.float16).requires_grad_(False)
        for parameter in block.parameters():
            parameter.fill_(number + 1)
        weights = weights_of(block)
        made.append(HostRun.pinned(weights, DEVICE) if DEVICE.type == "cuda" else HostRun.as_loaded(weights))
    return made


def of_ring(seed: int, runs: list[HostRun], copy_engine: CopyEngine) -> list[Tensor]:
    """Compute passes that are left, go back and begin anew, with sleep between them; return the readings."""
    by_chance, right = random.Random(seed), list[Tensor]()
    ring, block = Ring(runs, RING_SLOTS, DEVICE, copy_engine), 0
    for _ in range(PASSES * BLOCKS):
        lease = ring.take(block)
        for _ in range(2):
            right += [(view == block + 1).all() for view in lease.views]
            computed()
        ring.give_back(lease)
        block = by_chance.randrange(BLOCKS) if by_chance.random() < 0.1 else (block + 1) % BLOCKS
        if by_chance.random() < 0.02:
            ring.close()
            ring.open()
    ring.close()
    return right


def wrong(seeds: range) -> list[int]:
    """Return the seeds in which a reading was wrong."""
    runs, copy_engine, found = blocks(), copy_engine_for(DEVICE), []
    for seed in seeds:
        random.seed(seed)
        right = of_pages(seed) + of_ring(seed, runs, copy_engine)
        if not bool(torch.stack(right).all()):
            found.append(seed)
    return found


if __name__ == "__main__":
    count = int(sys.argv[1])
    bad = wrong(range(count))
    print(json.dumps({"interleavings": count, "wrong": bad}))
    sys.exit(bool(bad))


COUNT, COUNT_IF_QUICK, CHUNK = 10_000, 20, 500
UNDER_A_TOOL, TOOL_SECONDS = 20, 100
TOOLS: Final = ("memcheck", "racecheck")
TOOL: Final = "compute-sanitizer"
TESTS: Final = (
    "tests/engine/residency/test_swapping.py",
    "tests/engine/residency/test_places.py",
    "tests/engine/memory/weights/test_streaming.py",
)
# The programs of the tool by name: the interleavings, and the tests of copies and of the ring on the device.
PROGRAMS: Final = {
    "interleavings": ("-m", "djinn_evaluation.benchmarks.gpu.races", str(UNDER_A_TOOL)),
    "tests": ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS),
}
SUMMARY: Final = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


class Unseen(Exception):
    """Raised where the tool did not finish, with the reason."""


def run_races(setting: Setting) -> Result:
    torch.set_num_threads(setting.threads)
    begun, count = monotonic(), COUNT_IF_QUICK if setting.quick else COUNT
    kept, parts = Kept.of("races", setting), _parts(count)
    for name, find in parts.items():
        if name in kept.found:
            continue
        needed = 2 * TOOL_SECONDS if name.startswith(TOOLS) else TOOL_SECONDS
        if monotonic() - begun > setting.seconds - needed:
            raise Unfinished(f"{len(kept.found)} of {len(parts)} parts")
        kept.add(name, find())
        setting.so_far(_figures(kept), f"{len(kept.found)} of {len(parts)} parts")
    settings = {"seeds_with_wrong_readings": _wrong(kept), "interleavings_under_a_tool": UNDER_A_TOOL, "tests": TESTS}
    return Result(benchmark="races", settings=settings, figures=tuple(_figures(kept)), checks={"interleavings": count})


def _parts(count: int) -> dict[str, Callable[[], object]]:
    """Return the parts by name: chunks of the interleavings, and programs under tools."""
    chunks = [range(first, min(count, first + CHUNK)) for first in range(0, count, CHUNK)]
    tools = product(TOOLS, PROGRAMS)
    return {
        **{str(seeds): partial(_wrong_in, seeds) for seeds in chunks},
        **{f"{tool} {name}": partial(_errors, tool, name) for tool, name in tools},
    }


def _wrong_in(seeds: range) -> dict[str, Any]:
    return {"seeds": len(seeds), "wrong": wrong(seeds)}


def _errors(tool: str, name: str) -> dict[str, int | str]:
    """Return the number of errors that the tool reports, or why there is none."""
    try:
        return {"errors": errors(tool, PROGRAMS[name])}
    except Unseen as why:
        return {"not_run": str(why)}


def errors(tool: str, program: tuple[str, ...]) -> int:
    """Return the number of errors or hazards in a program. Raises Unseen."""
    path = shutil.which(TOOL)
    if path is None:
        raise Unseen(f"{TOOL} is not on the path")
    command = [path, "--tool", tool, sys.executable, *program]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unseen(f"{tool} was not through after {TOOL_SECONDS} s") from None
    found = [int(errors or hazards) for errors, hazards in SUMMARY.findall(done.stdout + done.stderr)]
    if not found:
        raise Unseen(f"{tool} says no summary: {(done.stdout + done.stderr).strip().rpartition(chr(10))[2][:200]}")
    if not any(found) and done.returncode:
        raise Unseen(f"{tool} reports no error of a program that ended with status {done.returncode}")
    return sum(found)


def _wrong(kept: Kept) -> list[int]:
    return [seed for value in kept.found.values() for seed in value.get("wrong", ())]


def _figures(kept: Kept) -> list[Figure]:
    count = sum(value.get("seeds", 0) for value in kept.found.values())
    interleavings = Figure(
        name=f"wrong readings among {count:,} random interleavings with poisoned pages",
        unit="interleavings",
        value=Spread.of([len(_wrong(kept))]),
        bar=at_most(0),
    )
    return [interleavings, *(_figure(name, value) for name, value in kept.found.items() if "seeds" not in value)]


def _figure(name: str, value: dict[str, int | str]) -> Figure:
    found, why = value.get("errors"), value.get("not_run")
    return Figure(
        name=f"errors of {name}",
        unit="errors",
        value=None if found is None else Spread.of([float(found)]),
        bar=at_most(0),
        not_run=None if why is None else str(why),
    )
