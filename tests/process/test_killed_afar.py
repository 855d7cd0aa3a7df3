"""An engine on another machine is killed with -9 and started again: its client comes back by itself and sends again
what had no answer, which is done once. Processes, sockets, keys and the journal are real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.logs import asked_by
from djinn_jupyter.wire.registry import Entry, Ready, decode_notice
from tests.engine.added.adding import request
from tests.engine.desk import tokens
from tests.engines import admit, end_all, own_registry
from tests.families import build
from tests.ports import free_port
from tests.process.nursery import Nursery
from tests.process.relay import Relay
from tests.saes import drawn, saved

pytestmark = [pytest.mark.processes, pytest.mark.alone]  # a run has to be under way when its engine is killed
PATIENCE_SECONDS: Final = 120.0
PROMPT: Final = tokens(12)


class Machine:
    """Another machine, with one engine at one port; it is killed and started again."""

    def __init__(self, model: Path) -> None:
        self.log = model.with_name("engines.log")
        self._model, self._nursery = model, Nursery(self.log)
        self._address = f"tcp://127.0.0.1:{free_port()}"
        self.afar = entry_at(read_address(self._address), "ada")
        self.here: Entry

    def start(self) -> None:
        options = ("--model", str(self._model), "--dtype", "float32", "--device", computed_on(), "--log-format", "json")
        (line,) = self._nursery.start(1, *options, "--listen", self._address)
        notice = decode_notice(line.encode())
        assert isinstance(notice, Ready), notice
        self.here = notice.entry

    def lines(self) -> list[dict[str, Any]]:
        """Return what all its engines have logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def kill(self) -> None:
        os.kill(self.here.pid, signal.SIGKILL)
        await_end(self.here)

    def end(self) -> None:
        end_all()
        self._nursery.end()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with own_registry(folder):
        build("llama").save_pretrained(folder / "model")
        admit("ada")
        there = Machine(folder / "model")
        there.start()
        yield there
        there.end()


@asynccontextmanager
async def client_of(machine: Machine) -> AsyncIterator[tuple[Relay, Connection]]:
    async with Relay(machine.afar) as relay:
        connection = await _opened(relay.entry)
        try:
            yield relay, connection
            for session in await _sessions(connection):
                await connection.ask(ask.Close(session=session))
        finally:
            await connection.close()


async def _opened(entry: Entry) -> Connection:
    return await open_connection(entry, holder="kernel-1", user="ada", timeout=PATIENCE_SECONDS)


async def _stop(connection: Connection, session: str) -> None:
    """Have a session that stands at a stop."""
    await connection.ask(ask.Open(session=session))
    await connection.ask(ask.SetBreakpoint(session=session, site="3", when="step == 1"))
    run = ask.Run(session=session, tokens=PROMPT, max_new_tokens=6, ignore_eos=True)
    assert isinstance(await connection.ask(run), told.Paused)


async def _finish(connection: Connection, session: str) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the tokens and the logits in which a stopped session ends."""
    finished = await connection.ask(ask.Resume(session=session, free=True))
    assert isinstance(finished, told.Finished)
    read = await connection.ask(ask.ReadLogits(session=session))
    assert isinstance(read, told.Logits)
    return finished.tokens, to_tensor(read.logits)


CHANGES: Final[tuple[ask.Request, ...]] = (
    ask.ApplyEdit(session="paris", edit=Scale(factor=0.5)),
    ask.Steer(session="paris", site="resid_post.1", edit=Scale(factor=0.9)),
    ask.Fork(session="paris", name="rome"),
    ask.Close(session="old"),
)


@pytest.mark.parametrize("heard", [True, False], ids=["done, its replies lost", "lost on the way"])
async def test_what_had_no_answer_is_done_once_by_the_killed_engine_or_the_next(machine: Machine, heard: bool) -> None:
    async with client_of(machine) as (relay, connection):
        for session in ("twin", "paris"):
            await _stop(connection, session)
        await connection.ask(ask.Open(session="old"))
        for change in CHANGES[:2]:
            await connection.ask(_of(change, "twin"))
        expected = await _finish(connection, "twin")
        relay.swallows_requests, relay.swallows_replies = not heard, heard
        before = len(machine.lines())
        asked = [asyncio.ensure_future(_asked(connection, change)) for change in CHANGES]
        if heard:
            await _until(lambda: _has_done_all(machine))
            await _until(lambda: _true(_have_ended(machine.lines()[before:]) == len(CHANGES)))
        else:
            await _until(lambda: _true(relay.swallowed > 0))
        machine.kill()
        relay.cut()
        await asyncio.to_thread(machine.start)
        await relay.mend()
        replies = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE_SECONDS)
        assert [type(reply) for reply in replies] == [told.Edited, told.Steered, told.Opened, told.Closed]
        engines = 2 if heard else 1
        await _until(lambda: _true(_have_ended(machine.lines()[before:]) >= engines * len(CHANGES)))
        _is_in_the_logs_of(engines, machine.lines()[before:])
        sessions = await _sessions(connection)
        assert sorted(sessions) == ["paris", "rome", "twin"]
        assert len(sessions["paris"].rules) == 1
        assert {one.holder for one in sessions.values()} == {"kernel-1"}, "they are this kernel's again"
        for session in ("paris", "rome"):
            made, logits = await _finish(connection, session)
            assert made == expected[0]
            assert torch.equal(logits, expected[1])


async def test_a_run_whose_engine_is_killed_is_not_begun_again_and_goes_on_from_there(machine: Machine) -> None:
    async with client_of(machine) as (relay, connection):
        await connection.ask(ask.Open(session="paris"))
        heard: list[told.Event] = []
        await connection.listen("paris", heard.append)
        run = ask.Run(session="paris", tokens=PROMPT, max_new_tokens=400, ignore_eos=True)
        running = asyncio.ensure_future(connection.ask(run))
        await _until(lambda: _true(sum(isinstance(event, told.TokenSampled) for event in heard) > 20))
        await _until(lambda: _is_kept(machine))
        machine.kill()
        await asyncio.to_thread(machine.start)
        with pytest.raises(EngineUnavailable, match="the session stands as far as it came"):
            await asyncio.wait_for(running, PATIENCE_SECONDS)
        described = (await _sessions(connection))["paris"]
        assert described.state == "idle"
        assert len(PROMPT) < described.tokens < len(PROMPT) + 400
        left = 400 + len(PROMPT) - described.tokens
        on = ask.Run(session="paris", extend=True, max_new_tokens=left, ignore_eos=True)
        finished = await asyncio.wait_for(connection.ask(on), PATIENCE_SECONDS)
        assert isinstance(finished, told.Finished)
        assert relay.swallowed == 0


async def test_a_module_that_is_on_its_way_when_the_engine_is_killed_is_added_once_by_the_next(
    machine: Machine, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "sae", drawn(build("llama").config.hidden_size, features=2**14))
    async with client_of(machine) as (relay, connection):
        await connection.ask(ask.Open(session="paris"))
        adding = asyncio.ensure_future(connection.ask(request(folder, "resid_post.1", session="paris")))
        await _until(lambda: _true(_gone(connection) > 2**19))
        machine.kill()
        relay.cut()
        assert not adding.done()
        assert _gone(connection) > 0
        await asyncio.to_thread(machine.start)
        await relay.mend()
        added = await asyncio.wait_for(adding, PATIENCE_SECONDS)
        assert isinstance(added, told.ModuleAdded)
        assert not added.existed
        listed = await connection.ask(ask.ListAddedModules())
        assert isinstance(listed, told.AddedModules)
        assert [module.site for module in listed.modules] == ["sae.1"]
        await connection.ask(ask.RemoveModule(name="sae"))


def _gone(connection: Connection) -> int:
    """Return the bytes of the request on its way that the engine has."""
    progress = connection.progress
    return progress.done if progress is not None and progress.way == "sent" else 0


async def _asked(connection: Connection, change: ask.Request) -> told.Reply:
    with asked_by(f"%{type(change).__name__}"):
        return await connection.ask(change)


def _is_in_the_logs_of(engines: int, lines: list[dict[str, Any]]) -> None:
    """Fail unless each change began once in each engine that it came to, with the same ids, and ended there."""
    for change in CHANGES:
        by = f"%{type(change).__name__}"
        began = [line for line in lines if line["event"] == "request.began" and line.get("asked_by") == by]
        ended = [line for line in lines if line["event"] == "request.ended" and line.get("asked_by") == by]
        assert len(began) == len({line["pid"] for line in began}) == engines, began
        assert [line.get("again", False) for line in began] == [False, True][-engines:], began
        assert [line["pid"] for line in began] == [line["pid"] for line in ended]
        assert {line["outcome"] for line in ended} <= {"Edited", "Steered", "Opened", "Closed"}
        assert len({(line["trace_id"], line["span_id"]) for line in (*began, *ended)}) == 1
        assert {line["person"] for line in began} == {"ada"}


def _of(change: Any, session: str) -> Any:
    return type(change)(**{**{name: getattr(change, name) for name in change.__struct_fields__}, "session": session})


async def _sessions(connection: Connection) -> dict[str, Any]:
    listed = await connection.ask(ask.ListSessions())
    return {one.name: one for one in listed.sessions}


def _have_ended(lines: list[dict[str, Any]]) -> int:
    """Return how many changes have ended by the log, whose last lines a killed engine takes along."""
    names = {f"%{type(change).__name__}" for change in CHANGES}
    return sum(line["event"] == "request.ended" and line.get("asked_by") in names for line in lines)


async def _has_done_all(machine: Machine) -> bool:
    """Whether the engine has done what was asked for, by one who looks on there."""
    beside = await _opened(machine.here)
    try:
        found = await _sessions(beside)
        return "ada@rome" in found and "ada@old" not in found
    finally:
        await beside.close()


async def _is_kept(machine: Machine) -> bool:
    """Whether the journal has a part of the run: it is written four times a second."""
    beside = await _opened(machine.here)
    try:
        return (await _sessions(beside))["ada@paris"].tokens > 100
    finally:
        await beside.close()


async def _true(value: bool) -> bool:
    return value


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await true():
            await asyncio.sleep(0.005)
