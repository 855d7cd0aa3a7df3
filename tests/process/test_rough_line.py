"""The quickstart over a line that delays by 50 ms, loses 1 % and is cut: bit for bit as without, nothing lost, nothing
done twice. In `make test` over loopback, with more losses and a short cut; in the run of validation between three
network namespaces, with a cut of 30 s."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.remote.large_messages import SoFar
from tests.process.quickstart import play
from tests.process.rough_line import RoughLine

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
HOPS = ("10.213.1.", "10.213.2.")  # between laptop and line, between line and box
PORT = 5556


@pytest.fixture
def keys(runtime: Path) -> Iterator[None]:
    own.draw_own("ada")
    folder = own.key_folder()
    folder.allow(folder.own("ada").public, "ada")
    for host in ("127.0.0.1", f"{HOPS[0]}2"):
        folder.trust(host, own.of_engines_here().public)
    yield
    loading._channels.close()
    for entry in running_engines():
        os.kill(entry.pid, signal.SIGTERM)
        await_end(entry)


@pytest.mark.usefixtures("keys")
async def test_the_quickstart_over_a_rough_line_is_the_same_to_the_last_bit() -> None:
    engine = await asyncio.to_thread(dj.load, "demo", listen="tcp://127.0.0.1:*")
    expected = await asyncio.to_thread(lambda: play(engine.session("near", fresh=True)))
    assert engine.entry is not None
    assert engine.entry.listens is not None
    host, _, port = engine.entry.listens.removeprefix("tcp://").rpartition(":")
    line = RoughLine(engine=(host, int(port)), delay_seconds=0.05, lost_share=0.05)
    async with line.standing():
        with ThreadPoolExecutor(1) as notebook:
            loop = asyncio.get_running_loop()
            afar = await loop.run_in_executor(notebook, dj.connect, f"tcp://127.0.0.1:{line.port}")
            playing = loop.run_in_executor(notebook, lambda: play(afar.session("afar", fresh=True)))
            while line.passed < 40:
                await asyncio.sleep(0.01)
            line.cut()
            await asyncio.sleep(1.0)
            await line.mend()
            assert await playing == expected


@pytest.mark.usefixtures("keys")
async def test_an_activation_over_a_slow_line_that_is_cut_in_its_midst_is_the_same_to_the_last_bit() -> None:
    """An array of half a MiB over a line of 200 kB/s; an interrupt first, and then whole."""
    engine = await asyncio.to_thread(dj.load, "demo", listen="tcp://127.0.0.1:*")
    near = await asyncio.to_thread(_stopped, engine, "near")
    assert engine.entry is not None
    assert engine.entry.listens is not None
    host, _, port = engine.entry.listens.removeprefix("tcp://").rpartition(":")
    line = RoughLine(engine=(host, int(port)), delay_seconds=0.025, lost_share=0.0, bytes_per_second=2e5)
    async with line.standing():
        with ThreadPoolExecutor(1) as notebook:
            loop = asyncio.get_running_loop()
            afar = await loop.run_in_executor(notebook, dj.connect, f"tcp://127.0.0.1:{line.port}")
            stop = await loop.run_in_executor(notebook, _stopped, afar, "afar")
            seen: list[int] = []

            def cell() -> bytes:
                afar.channel.show_receiving(_interrupt)
                with pytest.raises(KeyboardInterrupt):
                    _ = stop.hidden
                assert afar.session("afar").describe().state == "paused"
                afar.channel.show_receiving(lambda progress, *, over: seen.append(progress.done))
                return bytes(stop.hidden.data)

            reading = loop.run_in_executor(notebook, cell)
            while not seen:
                await asyncio.sleep(0.01)
            line.cut()
            await asyncio.sleep(1.0)
            await line.mend()
            assert await reading == bytes(near.hidden.data)
            assert 0 < seen[0] < near.hidden.nbytes


@pytest.mark.usefixtures("keys")
async def test_an_edited_array_over_a_slow_line_that_is_cut_in_its_midst_is_edited_once_to_the_last_bit() -> None:
    """An array of half a MiB over a line of 200 kB/s; an interrupt first, which edits nothing, and then whole."""
    engine = await asyncio.to_thread(dj.load, "demo", listen="tcp://127.0.0.1:*")
    near = await asyncio.to_thread(_stopped, engine, "near")
    values = near.hidden[::-1] * 2
    expected = await asyncio.to_thread(_edited, near, values)
    assert engine.entry is not None
    assert engine.entry.listens is not None
    host, _, port = engine.entry.listens.removeprefix("tcp://").rpartition(":")
    line = RoughLine(engine=(host, int(port)), delay_seconds=0.025, lost_share=0.0, bytes_per_second=2e5)
    async with line.standing():
        with ThreadPoolExecutor(1) as notebook:
            loop = asyncio.get_running_loop()
            afar = await loop.run_in_executor(notebook, dj.connect, f"tcp://127.0.0.1:{line.port}")
            stop = await loop.run_in_executor(notebook, _stopped, afar, "afar")
            seen: list[int] = []

            def cell() -> bytes:
                afar.channel.show_receiving(_interrupt)
                with pytest.raises(KeyboardInterrupt):
                    stop.session.edit(values)
                assert stop.session.stop.edits == ()
                afar.channel.show_receiving(lambda progress, *, over: seen.append(progress.done))
                return _edited(stop, values)

            editing = loop.run_in_executor(notebook, cell)
            while not seen:
                await asyncio.sleep(0.01)
            line.cut()
            await asyncio.sleep(1.0)
            await line.mend()
            assert await editing == expected
            assert 0 < seen[0] < values.nbytes


def _edited(stop: Any, values: object) -> bytes:
    """Set the value of a stop, and return the bits of what comes of it."""
    stop.session.edit(values)
    assert len(stop.session.stop.edits) == 1
    return bytes(stop.session.resume(free=True).logits.tobytes())


def _interrupt(progress: SoFar, *, over: bool) -> None:
    if not over:
        raise KeyboardInterrupt


def _stopped(engine: RemoteEngine, name: str) -> dj.Paused:
    session = engine.session(name, fresh=True)
    session.breakpoint("resid_post.4")
    stop = session.run([5 + number % 300 for number in range(1000)], max_new_tokens=1)
    assert isinstance(stop, dj.Paused)
    return stop


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
        assert box.stdout is not None
        assert "listens on" in box.stdout.readline()
        expected = play(dj.load("demo").session("near", fresh=True))  # over the private folder, which is no network
        engine = f"{HOPS[1]}2:{PORT}"
        line = _inside("dj-line", "-m", "tests.process.rough_line", str(PORT), engine, "0.05", "0.01", "30")
        end.callback(line.communicate)
        end.callback(line.kill)
        assert line.stdout is not None
        assert line.stdin is not None
        assert line.stdout.readline() == "stands\n"
        laptop = _inside("dj-laptop", "-m", "tests.process.quickstart", f"{HOPS[0]}2:{PORT}", "afar", "12")
        end.callback(laptop.wait)
        end.callback(laptop.kill)
        assert laptop.stdout is not None
        first = laptop.stdout.readline()
        line.stdin.write("cut\n")
        line.stdin.flush()
        assert line.stdout.readline() == "cut\n"
        assert [first.strip(), *laptop.stdout.read().split()] == [expected] * 12
        assert line.stdout.readline() == "mended\n"
