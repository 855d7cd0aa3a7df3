"""The folder of a module or an adapter, sent over a line to an engine on another machine: in the end it is there once
and computes the same bits; whatever ends the sending leaves nothing behind, and is told in one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import OverQuota
from djinn_jupyter.link import io_thread
from djinn_jupyter.link.io_thread import SoFar
from djinn_jupyter.remote import addresses as own
from djinn_jupyter.wire.people import QuotaFolder, read_quota
from tests import adapters, saes
from tests.engines import admit, own_registry
from tests.process.afar import until
from tests.process.rough_line import Afar, afar

pytestmark = pytest.mark.processes
PROMPT = "The capital of France is"
BYTES_PER_SECOND = 1e6


@dataclass(frozen=True)
class Kind:
    """A kind of folder: how it is added and listed, and bits that are computed with it."""

    folder: Path
    add: Callable[[RemoteEngine, Path], Any]
    added: Callable[[RemoteEngine], Any]
    bits: Callable[[RemoteEngine], np.ndarray[Any, Any]]


def _features(engine: RemoteEngine) -> np.ndarray[Any, Any]:
    session = engine.session("features", fresh=True)
    session.breakpoint("resid_post.4")
    session.run(PROMPT)
    value = session.inspect("sae.4").value
    session.close()
    return value


def _logits(engine: RemoteEngine) -> np.ndarray[Any, Any]:
    session = engine.session("adapted", fresh=True)
    session.adapter = "tuned"
    session.run(PROMPT, max_new_tokens=1)
    value = session.logits()
    session.close()
    return value


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An SAE of 2 MiB and an adapter of about as much; few of their bytes pack."""
    place = tmp_path_factory.mktemp("folders")
    demo = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    tensors = adapters.drawn(demo, ("q_proj", "v_proj", "down_proj"), rank=48)
    return {
        "module": saes.saved(place / "sae", saes.drawn(demo.config.hidden_size, features=2048)),
        "adapter": adapters.saved(place / "adapter", tensors, r=48),
    }


@pytest.fixture
def kind(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Kind:
    """A module where no other kind is asked for."""
    if getattr(request, "param", "module") == "module":
        return Kind(
            folders["module"],
            lambda engine, folder: engine.add_module("sae", folder, "resid_post.4"),
            lambda engine: engine.added_modules(),
            _features,
        )
    return Kind(
        folders["adapter"],
        lambda engine, folder: engine.add_adapter("tuned", folder),
        lambda engine: engine.adapters(),
        _logits,
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    """An engine of the demo model that listens, to which ada's key is admitted."""
    with own_registry(tmp_path_factory.mktemp("box")):
        admit("ada")
        yield dj.load("demo", listen="tcp://127.0.0.1:*")


@asynccontextmanager
async def reached(engine: RemoteEngine) -> AsyncIterator[Afar]:
    async with afar(engine, delay_seconds=0.025, bytes_per_second=BYTES_PER_SECOND) as here:
        yield here
        await here.cell(lambda: _remove(here.engine))
        await here.cell(here.engine.channel.close)


def _remove(engine: RemoteEngine) -> None:
    for adapter in engine.adapters():
        engine.remove_adapter(adapter.name)
    for module in engine.added_modules():
        engine.remove_module(module.name)


async def under_way(here: Afar) -> None:
    """Return once a part of the folder is at the engine, and a part is not."""
    connection = here.engine.channel._connection

    def is_part() -> bool:
        progress = connection.progress
        return progress is not None and progress.way == "sent" and 0 < progress.done < progress.total

    await until(is_part)


async def nothing_is_left(here: Afar, kind: Kind) -> None:
    """See that it is not there, nor a session that was opened for it, and that it can be added then."""
    assert [*await here.cell(lambda: kind.added(here.engine))] == []
    assert [*await here.cell(here.engine.sessions)] == []
    added = await here.cell(lambda: kind.add(here.engine, kind.folder))
    assert [one.digest for one in await here.cell(lambda: kind.added(here.engine))] == [added.digest]


@pytest.mark.parametrize("kind", ["module", "adapter"], indirect=True)
async def test_a_line_that_is_cut_in_its_midst_adds_it_once_and_it_computes_the_same_bits(
    engine: RemoteEngine, kind: Kind
) -> None:
    near = await asyncio.to_thread(kind.add, engine, kind.folder)
    expected = await asyncio.to_thread(kind.bits, engine)
    await asyncio.to_thread(_remove, engine)
    async with reached(engine) as here:
        adding = here.cell(lambda: kind.add(here.engine, kind.folder))
        await under_way(here)
        here.line.cut()
        await until(lambda: here.engine.channel.down_since is not None)
        assert not adding.done()
        await here.line.mend()
        added = await adding
        assert (added.digest, added.bytes_held) == (near.digest, near.bytes_held)
        assert [one.digest for one in await here.cell(lambda: kind.added(here.engine))] == [near.digest]
        assert np.array_equal(await here.cell(lambda: kind.bits(here.engine)), expected)


async def test_an_interrupt_in_its_midst_takes_it_back(
    engine: RemoteEngine, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_thread, "SHOWN_SECONDS", 0.0)
    monkeypatch.setattr(io_thread, "LOOK_SECONDS", 0.02)
    seen: list[SoFar] = []

    def interrupt(progress: SoFar, *, over: bool) -> None:
        seen.append(progress)
        if progress.done and not over:
            raise KeyboardInterrupt

    def cell() -> None:
        here.engine.channel.show_receiving(interrupt)
        with pytest.raises(KeyboardInterrupt):
            kind.add(here.engine, kind.folder)
        here.engine.channel.show_receiving(lambda progress, *, over: None)

    async with reached(engine) as here:
        await here.cell(cell)
        assert 0 < seen[-1].done < seen[-1].total
        await nothing_is_left(here, kind)


async def test_more_than_a_quota_of_memory_is_refused_with_nothing_left(engine: RemoteEngine, kind: Kind) -> None:
    """Of the device's memory when it is whole; of the host's: tests/process/test_pieces.py."""
    quotas = QuotaFolder(own.key_folder())
    quotas.write("ada", read_quota("device=1MiB"))
    try:
        async with reached(engine) as here:
            with pytest.raises(OverQuota, match=r"ada's quota of device memory is 1\.00 MiB"):
                await here.cell(lambda: kind.add(here.engine, kind.folder))
            quotas.forget("ada")
            await nothing_is_left(here, kind)
    finally:
        quotas.forget("ada")
