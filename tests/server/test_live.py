from __future__ import annotations

import json
from pathlib import Path

import pytest

from djinn_jupyter.engine.process.registration import Registration
from djinn_jupyter.server import live, monitor
from djinn_jupyter.server.kernels import Kernels
from djinn_jupyter.server.live import OUTCOMES_KEPT
from tests.process.served import Served, served
from tests.server.jupyter import Jupyter, Window, jupyter_server


async def opened(jupyter: Jupyter, *sessions: str) -> tuple[Window, str]:
    """A window that sees the one engine ready, with these sessions; and the engine's id."""
    window = await jupyter.listen()
    await window.until_seen(lambda engines: any(e["found"]["state"] == "ready" for e in engines.values()))
    (engine,) = window.engines
    for session in sessions:
        await jupyter.ask(engine, "Open", session=session)
    await window.until_seen(lambda engines: set(sessions) <= set(engines[engine]["sessions"]))
    return window, engine


async def test_it_begins_with_a_snapshot_of_everything(engine: Served, jupyter: Jupyter) -> None:
    first, _ = await opened(jupyter, "paris", "work/rome.ipynb")
    second = await jupyter.listen()
    snapshot = await second.hear()
    assert snapshot["live"] == "snapshot"
    assert snapshot["sequence"] == first.sequence
    assert {name: s["label"] for e in second.engines.values() for name, s in e["sessions"].items()} == {
        "paris": "paris",
        "work/rome.ipynb": "rome",
    }
    assert next(iter(second.engines.values()))["statistics"]["sessions"] == 2
    await first.close()
    await second.close()


async def test_a_delta_has_what_changed_and_nothing_else(engine: Served, jupyter: Jupyter) -> None:
    window, fake = await opened(jupyter, "paris", "rome")
    await jupyter.ask(fake, "Run", session="paris", tokens=[99], max_new_tokens=5)
    delta = await window.until(lambda m: m["live"] == "delta" and "paris" in m["changed"][fake].get("sessions", {}))
    assert (delta["appeared"], delta["gone"]) == ({}, {})
    assert set(delta["changed"][fake]["sessions"]) == {"paris"}
    assert "found" not in delta["changed"][fake]
    await window.until_seen(lambda engines: engines[fake]["sessions"]["paris"]["described"]["state"] == "paused")
    await window.close()


async def test_clocks_that_go_on_are_no_change(engine: Served, jupyter: Jupyter) -> None:
    """Rounds of reading pass, each with other clocks; the next message is the one that was provoked."""
    window, _ = await opened(jupyter, "paris")
    read = jupyter.extension.monitor.read
    for seconds in range(1, 6):
        _age(engine, float(seconds))
        await read()
    await window.say(say="resync")
    assert (await window.hear())["live"] == "snapshot"
    await window.close()


def _age(engine: Served, seconds: float) -> None:
    """Advance all clocks of the engine's reading."""
    before = engine.engine.reading.statistics
    fields = {name: getattr(before, name) for name in before.__struct_fields__}
    fields |= {"uptime_seconds": seconds, "requests_answered": int(seconds)}
    engine.engine.reading.statistics = type(before)(**fields)


async def test_events_come_as_they_are_and_tokens_are_gathered(engine: Served, jupyter: Jupyter) -> None:
    window, fake = await opened(jupyter, "paris")
    await jupyter.ask(fake, "Run", session="paris", tokens=[1], max_new_tokens=20)
    await window.until(lambda message: message["live"] == "event" and message["event"]["event"] == "SessionFinished")
    gathered: list[dict[str, object]] = []
    while sum(int(str(sampled["count"])) for sampled in gathered) < 20:
        gathered = [
            message["changed"][fake]["sampled"]["paris"]
            for message in window.messages
            if message["live"] == "delta" and "sampled" in message["changed"].get(fake, {})
        ]
        await window.hear() if not gathered else None
    events = [m["event"]["event"] for m in window.messages if m["live"] == "event"]
    assert events == ["SessionRunning", "SessionFinished"]
    assert "".join(str(sampled["text"]) for sampled in gathered) == "".join(f" {n}" for n in range(1, 21))
    assert len(gathered) < 20
    await window.close()


async def test_who_was_away_finds_the_last_outcomes(engine: Served, jupyter: Jupyter) -> None:
    window, fake = await opened(jupyter, "paris")
    moves = []
    for _ in range(OUTCOMES_KEPT + 3):
        _, accepted = await jupyter.ask(fake, "Run", session="paris", tokens=[1], max_new_tokens=1)
        await window.until(lambda m, move=accepted["move"]: m["live"] == "outcome" and m["move"] == move)
        moves.append(accepted["move"])
    late = await jupyter.listen()
    assert [outcome["move"] for outcome in (await late.hear())["outcomes"]] == moves[3:]
    await late.close()
    await window.close()


async def test_an_engine_that_starts_later_appears_and_one_that_ends_goes_with_its_reason(jupyter: Jupyter) -> None:
    window = await jupyter.listen()
    assert (await window.hear())["engines"] == {}
    with served() as serving:
        registration = Registration(serving.entry)
        await window.until_seen(lambda engines: any(e["found"]["state"] == "ready" for e in engines.values()))
        (engine,) = window.engines
        registration.withdraw()
    delta = await window.until(lambda message: message["live"] == "delta" and message["gone"])
    assert list(delta["gone"]) == [engine]
    assert "closed the connection" in delta["gone"][engine] or "has ended" in delta["gone"][engine]
    assert window.engines == {}
    await window.close()


async def test_a_frame_that_is_none_of_ours_closes_with_a_reason(jupyter: Jupyter) -> None:
    wide = f'{{"{chr(0x20AC) * 90}": 3}}'
    for frame in (wide, "", "{}", '{"say": "shout"}', '{"say": "focus", "notebook": 3}', b"\xff\xfe"):
        window = await jupyter.listen()
        await window.hear()
        await window.socket.write_message(frame, binary=isinstance(frame, bytes))
        assert await window.socket.read_message() is None
        assert window.socket.close_code == 1007, frame
        assert str(window.socket.close_reason).startswith("Not a message to the live WebSocket")


async def test_a_window_that_does_not_read_holds_nobody_up_and_is_resynced(
    engine: Served, jupyter: Jupyter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WAITING_MESSAGES", 8)
    window, fake = await opened(jupyter, "paris")
    (brisk,) = jupyter.extension.picture.readers
    slow = await jupyter.listen()
    (stuck,) = jupyter.extension.picture.readers - {brisk}
    picture = jupyter.extension.picture
    text = "x" * 2**16
    while not stuck.statistics().resyncs:  # its socket takes some megabytes, then nothing
        picture.outcome(fake, text, "Run", 0, _paused(engine, text))
        heard = await window.until(lambda message: message["live"] == "outcome")
        assert heard["session"] == text
    assert stuck.statistics().waiting == 0
    assert brisk.statistics().resyncs == 0
    await slow.until(lambda message: message["live"] == "snapshot" and message["sequence"] == window.sequence)
    assert slow.engines == window.engines
    await slow.close()
    await window.close()


def _paused(engine: Served, name: str):
    from tests.process.fake_engine import FakeSession

    return engine.engine._paused(FakeSession(name=name, owner="ada", holder=None), "step")


async def test_focus_is_noted_at_the_engine(engine: Served, root: Path) -> None:
    async with jupyter_server(root) as jupyter:
        name = str(root / "work" / "paris.ipynb")
        window, _ = await opened(jupyter, name, "rome")
        assert window.session(name)["notebook"] == "work/paris.ipynb"
        assert window.session("rome")["notebook"] is None
        other = await jupyter.listen()
        await window.say(say="focus", notebook="work/paris.ipynb")
        await noted(engine, (name, "focused"))
        await other.say(say="focus", notebook="work/paris.ipynb")
        await window.say(say="focus", notebook="work/rome.ipynb")
        await jupyter.extension.monitor.read()
        assert engine.engine.notes == [(name, "focused")]  # the other window still shows it
        await other.close()
        await noted(engine, (name, "focused"), (name, "blurred"))
        await window.close()


async def test_what_a_kernel_does_is_noted_at_the_engine(
    engine: Served, jupyter: Jupyter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "LOOK_SECONDS", 0.02)
    window, fake = await opened(jupyter, "paris")
    engine.engine.sessions["paris"].holder = "kernel-k1"
    looking = jupyter.extension.monitor
    states: dict[str, str] = {}

    async def read_kernels() -> Kernels:
        return Kernels(states=dict(states), paths={"k1": "work/paris.ipynb"})

    looking._read_kernels = read_kernels
    expected: list[tuple[str, str]] = []
    for state, activity in (("idle", "idle"), ("busy", "busy"), ("idle", "idle")):
        states["k1"] = state
        expected.append(("paris", activity))
        await noted(engine, *expected)
    await window.until_seen(lambda engines: engines[fake]["sessions"]["paris"]["kernel"])
    assert window.session("paris")["notebook"] == "work/paris.ipynb"
    assert window.session("paris")["kernel"] == {"id": "k1", "state": "idle"}
    looking.kernel_restarted("k1")
    await noted(engine, *expected, ("paris", "gone"), ("paris", "idle"))
    states.clear()
    await noted(engine, *expected, ("paris", "gone"), ("paris", "idle"), ("paris", "gone"))
    await window.close()


async def noted(engine: Served, *notes: tuple[str, str]) -> None:
    """Wait until the engine has been told exactly this."""
    import asyncio

    async with asyncio.timeout(120):
        while engine.engine.notes != list(notes):
            assert engine.engine.notes == list(notes)[: len(engine.engine.notes)], json.dumps(engine.engine.notes)
            await asyncio.sleep(0.01)
