"""The quickstart over a line that delays by 50 ms, loses 1 % and is cut: bit for bit as without, nothing lost, nothing
done twice. In `make test` over loopback, with more losses and a short cut; in the run of validation between three
network namespaces, with a cut of 30 s."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.io_thread import SoFar
from tests.engines import admit, own_registry
from tests.process.quickstart import play
from tests.process.rough_line import afar

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
HOPS = ("10.213.1.", "10.213.2.")  # between laptop and line, between line and box
PORT = 5556


@pytest.fixture
def keys(runtime: Path) -> None:
    admit("ada", hosts=("127.0.0.1", f"{HOPS[0]}2"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    with own_registry(tmp_path_factory.mktemp("own")):
        admit("ada")
        yield dj.load("demo", listen="tcp://127.0.0.1:*")


async def test_the_quickstart_over_a_rough_line_is_the_same_to_the_last_bit(engine: RemoteEngine) -> None:
    expected = await asyncio.to_thread(lambda: play(engine.session("near", fresh=True)))
    async with afar(engine, delay_seconds=0.05, lost_share=0.05) as here:
        playing = here.cell(lambda: play(here.engine.session("afar", fresh=True)))
        while here.line.passed < 40:
            await asyncio.sleep(0.01)
        await here.cut_for_a_second()
        assert await playing == expected


def _read(stop: dj.Paused, values: object) -> bytes:
    return bytes(stop.hidden.data)


def _edited(stop: dj.Paused, values: object) -> bytes:
    """Set the value of a stop, and return the bits of what comes of it."""
    stop.session.edit(values)
    assert len(stop.session.stop.edits) == 1
    return bytes(stop.session.resume(free=True).logits.tobytes())


@pytest.mark.parametrize("work", [_read, _edited])
async def test_half_a_mib_over_a_slow_line_that_is_cut_in_its_midst_is_the_same_to_the_last_bit(
    engine: RemoteEngine, work: Callable[[dj.Paused, object], bytes]
) -> None:
    """An activation that is read, and an array that edits one, over a line of 200 kB/s; an interrupt first, which edits
    nothing, and then whole."""
    near = await asyncio.to_thread(_stopped, engine, "near")
    values = near.hidden[::-1] * 2
    expected = await asyncio.to_thread(work, near, values)
    async with afar(engine, delay_seconds=0.025, bytes_per_second=2e5) as here:
        stop = await here.cell(lambda: _stopped(here.engine, "afar"))
        seen: list[int] = []

        def cell() -> bytes:
            here.engine.channel.show_receiving(_interrupt)
            with pytest.raises(KeyboardInterrupt):
                work(stop, values)
            assert here.engine.session("afar").describe().state == "paused"
            assert stop.session.stop.edits == ()
            here.engine.channel.show_receiving(lambda progress, *, over: seen.append(progress.done))
            return work(stop, values)

        working = here.cell(cell)
        while not seen:
            await asyncio.sleep(0.01)
        await here.cut_for_a_second()
        assert await working == expected
        assert 0 < seen[0] < values.nbytes


def _interrupt(progress: SoFar, *, over: bool) -> None:
    if not over:
        raise KeyboardInterrupt


def _stopped(engine: RemoteEngine, name: str) -> dj.Paused:
    session = engine.session(name, fresh=True)
    session.breakpoint("resid_post.4")
    return session.run([5 + number % 300 for number in range(1000)], max_new_tokens=1)


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Laptop, line and box, each a network of its own; only the line is joined with both."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces are made by root, with iproute2")
    made = ["dj-laptop", "dj-line", "dj-box"]
    with ExitStack() as end:
        for name in made:
            _ip("netns", "add", name)
            end.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for hop, (one, other) in zip(HOPS, (made[:2], made[1:]), strict=True):
            _ip("link", "add", f"{one}-0", "netns", one, "type", "veth", "peer", "name", f"{other}-1", "netns", other)
            for name, device, number in ((one, f"{one}-0", 1), (other, f"{other}-1", 2)):
                _ip("-n", name, "addr", "add", f"{hop}{number}/24", "dev", device)
                _ip("-n", name, "link", "set", device, "up")
        yield


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _inside(namespace: str, *words: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, *words]
    beside = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=beside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.usefixtures("keys", "namespaces")
def test_so_it_is_between_network_namespaces_with_a_cut_of_thirty_seconds() -> None:
    with ExitStack() as end:
        box = _inside("dj-box", "-m", "djinn_jupyter.cli.main", "serve", "demo", "--listen", f"tcp://0.0.0.0:{PORT}")
        end.callback(box.communicate)
        end.callback(box.terminate)
        assert "listens on" in box.stdout.readline()
        expected = play(dj.load("demo").session("near", fresh=True))  # over the private folder, which is no network
        engine = f"{HOPS[1]}2:{PORT}"
        line = _inside("dj-line", "-m", "tests.process.rough_line", str(PORT), engine, "0.05", "0.01", "30")
        end.callback(line.communicate)
        end.callback(line.kill)
        assert line.stdout.readline() == "stands\n"
        laptop = _inside("dj-laptop", "-m", "tests.process.quickstart", f"{HOPS[0]}2:{PORT}", "afar", "12")
        end.callback(laptop.wait)
        end.callback(laptop.kill)
        first = laptop.stdout.readline()
        line.stdin.write("cut\n")
        line.stdin.flush()
        assert line.stdout.readline() == "cut\n"
        assert [first.strip(), *laptop.stdout.read().split()] == [expected] * 12
        assert line.stdout.readline() == "mended\n"
