"""Collections by an engine on another machine: persons with keys, and its own user through ssh, have local files with
the bits that its own user has there; whatever ends the handing over leaves whole shards, which the same call goes on
after."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link import io_thread
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import SoFar
from tests.engines import admit, own_registry
from tests.families import build
from tests.process.afar import until
from tests.process.rough_line import Afar, afar
from tests.process.sshd import sshd
from tests.process.test_killed_afar import Machine

pytestmark = pytest.mark.processes
ROOT: Final = Path(__file__).parents[2]
BYTES_PER_SECOND: Final = 1e6
PERSONS: Final = ("ada", "bert")
PROMPTS: Final = [[(7 * prompt + at) % 90 + 5 for at in range(24)] for prompt in range(24)]
SITES: Final = "resid_post.*"
SHARDS: Final = 3  # of about 800 KB, which go in pieces


def collected(engine: RemoteEngine, folder: Path, **asked: Any) -> dj.Activations:
    return engine.collect(PROMPTS, SITES, to=folder, shard_prompts=8, **asked)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass(frozen=True)
class Box:
    """A machine with an engine; `acts` is the collection that its own user has made there."""

    folder: Path
    engine: RemoteEngine
    acts: dj.Activations

    def shards(self) -> list[Path]:
        return sorted(self.folder.rglob("*shard-*"))


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """An engine of the demo model that listens, to which two keys are admitted."""
    place, own_users = tmp_path_factory.mktemp("box"), tmp_path_factory.mktemp("own") / "acts"
    with own_registry(place):
        admit(*PERSONS)
        engine = dj.load("demo", listen="tcp://127.0.0.1:*", threads=1)
        yield Box(place, engine, collected(engine, own_users))


async def on_its_way(here: Afar) -> None:
    """Return once a part of a shard has arrived, and a part has not."""
    connection = here.engine.channel._connection

    def is_part() -> bool:
        progress = connection.progress
        return progress is not None and progress.way == "received" and 0 < progress.done < progress.total

    await until(is_part)


@asynccontextmanager
async def reached(box: Box, person: str = "ada", *, rate: float = BYTES_PER_SECOND) -> AsyncIterator[Afar]:
    async with afar(box.engine, person, delay_seconds=0.01, bytes_per_second=rate) as here:
        yield here
        await here.cell(here.engine.channel.close)


def layers_run(box: Box) -> int:
    return box.engine.statistics().layers_run


async def test_two_persons_have_local_files_with_the_bits_of_the_engines_own_user(box: Box, tmp_path: Path) -> None:
    """At once, over lines of their own; nothing lies on the engine's machine meanwhile or afterwards."""
    async with reached(box, "ada", rate=1e8) as ada, reached(box, "bert", rate=1e8) as bert:
        under_way = [
            here.cell(lambda here=here, name=name: collected(here.engine, tmp_path / name))
            for here, name in ((ada, "ada"), (bert, "bert"))
        ]
        for acts in await asyncio.gather(*under_way):
            assert contents(acts.folder) == contents(box.acts.folder)
            for site in box.acts:
                one, other = acts[site].torch()[:], box.acts[site].torch()[:]
                assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert box.shards() == []
        assert await asyncio.to_thread(box.engine.sessions) == ()


async def test_a_line_that_is_cut_in_the_midst_of_a_shard_hands_over_the_same_and_computes_nothing_twice(
    box: Box, tmp_path: Path
) -> None:
    before = layers_run(box)
    collected(box.engine, tmp_path / "near")
    once = layers_run(box) - before
    async with reached(box) as here:
        collecting = here.cell(lambda: collected(here.engine, tmp_path / "acts"))
        await on_its_way(here)
        here.line.cut()
        await until(lambda: here.engine.channel.down_since is not None)
        assert not collecting.done()
        await here.line.mend()
        await collecting
    assert contents(tmp_path / "acts") == contents(box.acts.folder)
    assert layers_run(box) - before == 2 * once


async def test_an_interrupt_in_the_midst_of_a_shard_keeps_whole_ones_and_the_same_call_goes_on(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_thread, "SHOWN_SECONDS", 0.0)
    monkeypatch.setattr(io_thread, "LOOK_SECONDS", 0.02)
    seen: list[SoFar] = []

    def interrupt(progress: SoFar, *, over: bool) -> None:
        seen.append(progress)
        if (tmp_path / "acts" / "shard-00000.safetensors").exists() and progress.done and not over:
            raise KeyboardInterrupt

    def cell() -> None:
        here.engine.channel.show_receiving(interrupt)
        with pytest.raises(dj.WorkInterrupted, match=r"^The collection was interrupted, .*Whole shards are kept in "):
            collected(here.engine, tmp_path / "acts")
        here.engine.channel.show_receiving(lambda progress, *, over: None)

    async with reached(box) as here:
        await here.cell(cell)
        assert 0 < seen[-1].done < seen[-1].total
        first = contents(tmp_path / "acts")
        assert sorted(first) == ["shard-00000.safetensors"]
        assert await here.cell(here.engine.sessions) == ()
        before, done = layers_run(box), list[int]()
        await here.cell(lambda: collected(here.engine, tmp_path / "acts", on_progress=done.append))
        assert done[0] == 8  # those of the shard that is there
        assert layers_run(box) - before > 0
    assert contents(tmp_path / "acts") == contents(box.acts.folder)


async def test_a_person_finds_no_folder_of_the_engines_machine_by_the_name_that_a_client_gives(
    box: Box, tmp_path: Path
) -> None:
    """A client that sends the path, as its own user's does, is refused; nothing is written there."""
    there = tmp_path / "there"
    async with reached(box, rate=1e8) as here:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SocketChannel, "is_afar", False)
            with pytest.raises(DjinnError, match="A folder on the engine's machine is for its user alone"):
                await here.cell(lambda: collected(here.engine, there))
    assert not there.exists()


@pytest.fixture
def machine(tmp_path: Path, keys: None) -> Iterator[Machine]:
    """One more machine, whose engine is killed and started again at the same port."""
    build("llama").save_pretrained(tmp_path / "machine" / "model")
    there = Machine(tmp_path / "machine" / "model")
    there.start()
    yield there
    there.end()
    loading._channels.close()


def test_an_engine_that_is_killed_is_gone_on_with_after_the_last_whole_shard(machine: Machine, tmp_path: Path) -> None:
    """By the next one at that address, in a session of its own."""

    def kill(done: int) -> None:
        seen.append(done)
        if done == 16 and machine.here.pid == first:
            machine.kill()
            machine.start()

    seen: list[int] = []
    first, engine = machine.here.pid, dj.connect(machine.afar.commands)
    whole = contents(collected(engine, tmp_path / "whole").folder)
    once = engine.statistics().layers_run
    collected(engine, tmp_path / "twice")
    shards = engine.statistics().layers_run - once
    acts = collected(engine, tmp_path / "acts", on_progress=kill)
    assert machine.here.pid != first
    assert contents(acts.folder) == whole
    assert seen == sorted(seen)
    assert engine.statistics().layers_run == once - shards + shards // SHARDS  # of the third alone
    assert engine.sessions() == ()


def test_the_engines_own_user_has_them_here_through_ssh(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {f"JUPYTER_{kind}_DIR": str(box.folder / kind.lower()) for kind in ("DATA", "RUNTIME")}
    with sshd(tmp_path / "sshd", {"PYTHONPATH": str(ROOT), **folders}) as server:
        monkeypatch.setenv("PATH", str(server.bin), prepend=os.pathsep)
        engine = dj.load("demo", at="ssh://box")
        try:
            acts = collected(engine, tmp_path / "acts")
        finally:
            engine.channel.close()
    assert contents(acts.folder) == contents(box.acts.folder)
    assert box.shards() == []
