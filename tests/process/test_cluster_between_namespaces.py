"""A Ray cluster whose machines are network namespaces joined by one switch: machines are killed at random under work,
nothing is lost or done twice. `make cluster-test` installs Ray."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.process.ray_machines import needs_ray
from tests.waiting import until

ROOT: Final = Path(__file__).parents[2]
SWITCH: Final = "dj-switch"
PLACES: Final = ("dj-ray-1", "dj-ray-2", "dj-ray-3")
HEAD: Final = PLACES[0]
NET: Final = "10.217.1."
PORT: Final = 6379
KILLS, TOKENS = 2, 40
NOTEBOOK: Final = f"""
import sys
import djinn_jupyter as dj
engine = dj.load("demo", device="cpu", at="cluster")
ask = dict(max_new_tokens=1, extend=True, ignore_eos=True)
def lines():
    for name in ("plain", "line"):
        session = engine.session(name, fresh=True)
        tokens = list(session.run("The capital of France is", max_new_tokens=1).tokens)
        yield name, tokens[0]
        while len(tokens) < {TOKENS}:
            tokens += session.run([], **ask).tokens
            yield name, tokens[-1]
    yield "ended", session.describe().exactness
for _, (name, said) in zip(sys.stdin, lines()):
    print(name, said, flush=True)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_ray]


class Machines:
    """A head with no room for an engine, and two machines with room for one each."""

    def __init__(self, home: Path, ray: Path) -> None:
        self._home, self._ray = home, ray

    def begin(self, place: str) -> None:
        """Begin Ray at a place: its head, or a machine that joins it."""
        own = f"--node-ip-address={address(place)}"
        if place == HEAD:
            joins = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self._ray}"]
        else:
            joins = [f"--address={address(HEAD)}:{PORT}", "--num-cpus=1"]
        size = f"--object-store-memory={80 * 2**20}"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", own, size, "--disable-usage-stats", *joins]
        for _ in range(4):  # Ray gives a machine up that has not begun within 30 s
            if self.inside(place, *ray, wait=True).returncode == 0:
                return
        raise AssertionError(f"Ray does not start at {place}.")

    def kill(self, place: str) -> None:
        """End all of a machine at once, as a power cut does."""
        for pid in subprocess.run(
            ["ip", "netns", "pids", place], capture_output=True, text=True, check=True
        ).stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def engine(self) -> str:
        """Return the machine of the engine, once Ray has placed it."""
        listed = until(lambda: found if "tcp://" in (found := self.djinn("cluster", "list")) else "", "a place")
        return next(place for place in PLACES if f"tcp://{address(place)}:" in listed)

    def djinn(self, *words: str) -> str:
        """Return what a command said at the head."""
        ran = self.inside(HEAD, sys.executable, "-m", "djinn_jupyter.cli.main", *words, wait=True)
        assert ran.returncode == 0, ran.communicate()
        return ran.stdout.read()

    def inside(self, place: str, *words: str, wait: bool = False) -> subprocess.Popen[str]:
        folders = {"JUPYTER_RUNTIME_DIR": self._home / place / "r", "JUPYTER_DATA_DIR": self._home / place / "d"}
        own = {**{name: str(folder) for name, folder in folders.items()}, "RAY_ADDRESS": f"{address(HEAD)}:{PORT}"}
        beside = {**os.environ, **own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if "start" in words:
            del beside["RAY_ADDRESS"]
        said = (self._home / f"{place}.out").open("a") if "start" in words else subprocess.PIPE  # its children keep it
        ran = subprocess.Popen(
            ["ip", "netns", "exec", place, *words], env=beside, stdin=subprocess.PIPE, stdout=said, text=True
        )
        if wait:
            ran.wait(240)
        return ran


def address(place: str) -> str:
    return f"{NET}{1 + PLACES.index(place)}"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces are made by root, with iproute2")
    with ExitStack() as end, tempfile.TemporaryDirectory(dir="/tmp", prefix="dj") as ray:  # sockets have short paths
        made = Machines(tmp_path, Path(ray))
        _ip(end, SWITCH)
        run("ip", "-n", SWITCH, "link", "add", "dj-bridge", "type", "bridge")
        run("ip", "-n", SWITCH, "link", "set", "dj-bridge", "up")
        for place in PLACES:
            _ip(end, place)
            end.callback(made.kill, place)
            run("ip", "link", "add", place, "netns", place, "type", "veth", "peer", "name", place, "netns", SWITCH)
            run("ip", "-n", SWITCH, "link", "set", place, "master", "dj-bridge", "up")
            run("ip", "-n", place, "addr", "add", f"{address(place)}/24", "dev", place)
            run("ip", "-n", place, "link", "set", place, "up")
            run("ip", "-n", place, "route", "add", "default", "dev", place)  # by which Ray finds its own address
        for place in PLACES:
            made.begin(place)
        yield made


def _ip(end: ExitStack, name: str) -> None:
    run("ip", "netns", "add", name)
    end.callback(run, "ip", "netns", "del", name)
    run("ip", "-n", name, "link", "set", "lo", "up")


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def test_machines_are_killed_at_random_under_work_and_nothing_is_lost_or_done_twice(
    machines: Machines, tmp_path: Path
) -> None:
    machines.djinn("key", "new", "anna")
    machines.djinn("cluster", "load", "demo", "--device", "cpu", "--threads", "1", f"--shared-journal={tmp_path}")
    notebook = Notebook(machines)
    plain = notebook.tokens(TOKENS)
    draw, line = random.Random(16), list[str]()
    for _ in range(KILLS):
        line += notebook.tokens(draw.randrange(2, 12))
        notebook.ask(3)  # under way
        at = machines.engine()
        machines.kill(at)
        line += notebook.told(3)
        assert machines.engine() != at
        machines.begin(at)
    assert [*line, *notebook.tokens(TOKENS - len(line))] == plain
    assert notebook.tokens(1) == ["recomputed"]
    notebook.end()


class Notebook:
    """A program at the head that runs two lines, one token whenever it is asked to."""

    def __init__(self, machines: Machines) -> None:
        self._program = machines.inside(HEAD, sys.executable, "-c", NOTEBOOK)

    def tokens(self, count: int) -> list[str]:
        self.ask(count)
        return self.told(count)

    def ask(self, count: int) -> None:
        self._program.stdin.write("go\n" * count)
        self._program.stdin.flush()

    def told(self, count: int) -> list[str]:
        return [self._program.stdout.readline().split()[1] for _ in range(count)]

    def end(self) -> None:
        self._program.communicate(timeout=60)
        assert self._program.returncode == 0
