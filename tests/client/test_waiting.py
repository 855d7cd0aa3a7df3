"""Who waits for a reply is told how far it is and how the line is; an interrupt ends the waiting."""

from __future__ import annotations

import inspect
import io
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from IPython import display

import djinn_jupyter as dj
from djinn_jupyter.api.batches import run_until_stop
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UnknownSession, WireError
from djinn_jupyter.link import io_thread, waiting
from djinn_jupyter.link.io_thread import AwaitedReply, ConnectionNotice, SoFar, awaited
from djinn_jupyter.link.waiting import TerminalProgress
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Departed, Pong, Welcome
from djinn_jupyter.wire.requests import Pause, Run
from tests.client.direct import DirectChannel
from tests.client.test_interrupts import LINE, OTHER, SWEEP, WORKS
from tests.process.fake_engine import DESCRIPTION

Stream = TypeVar("Stream", bound=io.StringIO)
PAIR: dict[str, Any] = {"clean": LINE, "corrupted": OTHER, "metric": "logit(17)"}
MORE: dict[str, Callable[[RemoteEngine, Path], Any]] = {
    "path": lambda engine, folder: dj.path(engine, "z -> logits", **PAIR),
    "attribute": lambda engine, folder: dj.attribute(engine, site="resid_post", over="layer", **PAIR),
    "edges": lambda engine, folder: dj.edges(engine, **PAIR),
    "circuit": lambda engine, folder: dj.circuit(engine, dj.edges(engine, **PAIR), edges=3),
    "circuit_curve": lambda engine, folder: dj.circuit_curve(engine, dj.edges(engine, **PAIR), sizes=(0.5, 1.0)),
    "acdc": lambda engine, folder: dj.acdc(engine, dj.edges(engine, **PAIR), 1.0),
    "heads": lambda engine, folder: engine.head_scores(length=4, samples=1),
    "batch": lambda engine, folder: engine.session("main", fresh=True).run([LINE, OTHER], max_new_tokens=1),
    "reproduce": lambda engine, folder: dj.reproduce(engine, engine.loss([LINE])),
    "train_probe": lambda engine, folder: dj.train_probe(
        engine.collect([LINE, OTHER], "resid_post.1", to=folder / "acts"), ["a", "b"], to=folder / "probe", held_out=0
    ),
}
AT_ONCE = {
    "attach": "waits for Hello alone, as a request does",
    "auroc": "reads arrays of this process",
    "beside": "is load or connect",
    "direct": "is decorated too",
    "engines": "reads the registry",
    "noise": "makes a value",
    "per_pair": "makes a value",
    "study": "reads a file or makes a value",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What waits is shown here, and at once."""
    return shown_at(Terminal(), monkeypatch)


def shown_at(shown: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(waiting, "TerminalProgress", lambda: TerminalProgress(shown))
    monkeypatch.delenv("DJINN_STATIC", raising=False)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 1e-4)
    return shown


@pytest.mark.parametrize("work", [*WORKS, *MORE])
def test_work_that_takes_a_while_shows_how_to_stop_it(
    engine: RemoteEngine, tmp_path: Path, terminal: Terminal, work: str
) -> None:
    {**WORKS, **MORE}[work](engine, tmp_path)
    assert "; an interrupt " in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


class Answered:
    """A channel whose reply comes after a few looks."""

    down_since = None

    def ask(self, request: ask.Request) -> AwaitedReply:
        reply = AwaitedReply(lambda: None, lambda: None)
        threading.Timer(0.05, lambda: reply.set_result(Pong())).start()
        return reply


def test_a_request_and_a_run_show_it_too(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "LOOK_SECONDS", 0.001)
    channel: Any = Answered()
    channel.ask(ask.Ping()).result()
    assert re.match(r"The engine: \d s; an interrupt ends the waiting", terminal.getvalue())
    terminal.truncate(0)
    run_until_stop(channel, "main", ask.Run(session="main", tokens=(1,)), None)
    assert re.search(r"The run: \d s; an interrupt pauses it", terminal.getvalue())
    assert "The engine" not in terminal.getvalue()


def swept(engine: RemoteEngine, **given: Any) -> None:
    dj.sweep(engine, clean=LINE, corrupted=OTHER, **SWEEP, **given)


class Output:
    """A cell's output that is updated in place; all texts that it had are kept."""

    def __init__(self, outputs: list[list[str]]) -> None:
        self._outputs = outputs

    def begin(self, shown: dict[str, str]) -> Output:
        self._outputs.append([shown["text/plain"]])
        return self

    def update(self, shown: dict[str, str], **_: object) -> None:
        self._outputs[-1].append(shown["text/plain"])


def test_a_notebook_keeps_one_line_and_a_file_gets_one(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    in_kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    notebook, executed = in_kernel(), in_kernel()
    outputs: list[list[str]] = []
    monkeypatch.setattr(display, "display", lambda shown, **_: Output(outputs).begin(shown))
    monkeypatch.setenv("JPY_SESSION_NAME", "work/paris.ipynb")
    shown_at(notebook, monkeypatch)
    swept(engine)
    assert notebook.getvalue() == ""  # a notebook draws standard error as a fault
    (lines,) = outputs
    assert all(line.startswith("The sweep: ") for line in lines)
    assert "; an interrupt ends it" in lines[0]
    assert "interrupt" not in lines[-1]
    monkeypatch.delenv("JPY_SESSION_NAME")  # as in nbconvert, which saves every rewriting
    for file in (io.StringIO(), executed):
        shown_at(file, monkeypatch)
        swept(engine)
        assert re.fullmatch(r"The sweep: .*\d s; an interrupt ends it\n", file.getvalue())


def test_a_caller_that_shows_its_progress_is_left_to_it(
    engine: RemoteEngine, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(engine, on_progress=lambda grid, done, total: None)
    monkeypatch.setenv("DJINN_STATIC", "1")
    swept(engine)
    monkeypatch.delenv("DJINN_STATIC")
    beside = threading.Thread(target=lambda: swept(engine))
    beside.start()
    beside.join()
    assert terminal.getvalue() == ""


def test_the_line_says_how_far_it_is(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting.Wait, "step", lambda wait, far: said.append(far))
    swept(engine)
    engine.loss([LINE, OTHER])
    assert any(one.endswith(" cells") for one in said)
    assert "0 of 2 prompts" in said


def test_every_public_function_waits_so_or_says_why_not() -> None:
    """A new function of `dj` is tried above or named in AT_ONCE."""
    tried = {*WORKS, *MORE, *AT_ONCE, "load", "connect", "collect", "attribution_graph", "splice"}
    trained = {"train_sae", "train_transcoder", "train_tuned_lens", "steering_vector"}  # as train_probe
    edits = {kind.make.__name__ for kind in __import__("djinn_jupyter.api.edits", fromlist=["KINDS"]).KINDS.values()}
    functions = {name for name in dj.__all__ if inspect.isfunction(getattr(dj, name))}
    assert functions - edits <= tried | trained


WELCOME = Welcome(version="0", model=DESCRIPTION, attached=())


class Line:
    """A connection that the test loses and mends. Its entry is itself."""

    def __init__(self, said: list[str]) -> None:
        self.down_since: float | None = None
        self.progress: SoFar | None = None
        self.latest: SoFar | None = None
        self.place, self.said, self.entry = "gpu-box:5556", said, cast(Any, self)
        self.notice = ConnectionNotice(self)


def no_one() -> None:
    raise AssertionError("No one gave it up.")


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    said: list[str] = []
    monkeypatch.setattr(io_thread, "_on_stderr", said.append)
    return Line(said)


def test_a_line_is_told_once_when_it_is_down_and_once_when_it_is_back(line: Line) -> None:
    line.notice.look()
    assert line.said == []
    line.down_since = time.time() - 12.4
    line.notice.look()
    line.notice.look()
    (down,) = line.said
    assert down.startswith("The line to gpu-box:5556 has been down for 12 s.")
    line.down_since = None
    line.notice.look()
    line.notice.look()
    assert line.said[1:] == ["The line to gpu-box:5556 is back."]


def test_an_engine_that_has_moved_is_named_by_both_of_its_places(line: Line) -> None:
    line.down_since = time.time() - 12.4
    line.notice.look()
    line.place, line.down_since = "gpu-4:40233", None
    line.notice.look()
    assert line.said[1:] == ["The engine at gpu-box:5556 is at gpu-4:40233 now, and the line to it is back."]


def test_a_line_that_is_back_at_once_is_not_told(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "TOLD_SECONDS", 3600.0)
    line.down_since = time.time()
    line.notice.look()
    line.down_since = None
    line.notice.look()
    assert line.said == []


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "LOOK_SECONDS", 0.001)


@pytest.mark.usefixtures("quickly")
def test_who_waits_for_a_reply_hears_of_the_line_and_gets_the_reply(line: Line) -> None:
    reply = AwaitedReply(line.notice.look, no_one)
    line.down_since = time.time() - 60

    def mended() -> None:
        while not line.said:
            time.sleep(0.001)
        line.down_since = None
        reply.set_result(Pong())

    mending = threading.Thread(target=mended)
    mending.start()
    assert reply.result() == Pong()
    mending.join()
    assert [said.rpartition(" ")[2] for said in line.said] == ["waiting.", "back."]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("error", [UnknownSession("no such session"), TimeoutError("its own")])
def test_an_error_is_raised_as_it_is(line: Line, error: Exception) -> None:
    reply = AwaitedReply(line.notice.look, no_one)
    threading.Timer(0.01, lambda: reply.set_exception(error)).start()
    with pytest.raises(type(error), match=str(error)):
        reply.result()


def test_a_reply_that_takes_a_while_is_told_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    receiving = Line([])
    notice = receiving.notice
    for received in (0, 3 * 2**20, 6 * 2**20):
        receiving.progress = SoFar(way="received", done=received, total=12 * 2**20, carried=received // 2, seconds=3.0)
        notice.look()
    receiving.progress, receiving.latest = None, receiving.progress
    notice.look()
    said = capsys.readouterr().err
    assert said == "Receiving 0 B of 12.0 MiB. An interrupt ends it, and the session stays as it is.\n"
    assert str(SoFar(way="received", done=3 * 2**20, total=12 * 2**20, carried=3 * 2**19, seconds=3.0)) == (
        "receiving 3.00 MiB of 12.0 MiB, 512 KiB/s, about 9 s left"
    )
    receiving = Line([])
    notice = receiving.notice
    receiving.progress = SoFar(way="received", done=1, total=2, carried=1, seconds=io_thread.SHOWN_SECONDS / 2)
    notice.look()
    receiving.progress, receiving.latest = None, receiving.progress
    notice.look()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quickly")
def test_an_interrupt_ends_the_waiting_and_gives_up_the_reply() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        awaited(Future[None](), interrupt)
    given_up = list[bool]()
    reply = AwaitedReply(interrupt, lambda: given_up.append(True))
    with pytest.raises(KeyboardInterrupt):
        reply.result()
    assert given_up == [True]


def test_the_first_interrupt_of_a_run_is_raised_while_the_line_is_down() -> None:
    interrupts = iter([KeyboardInterrupt(), AssertionError("it waited for a reply that cannot come")])

    def interrupted() -> None:
        raise next(interrupts)

    channel = DirectChannel(WELCOME, lambda request, reply: None, interrupted)
    channel.down_since = time.time()
    with pytest.raises(KeyboardInterrupt):
        run_until_stop(channel, "paris", Run(session="paris", tokens=(1,)), None)
    assert isinstance(channel.requests[-1], Pause), "the engine hears of it when the line is back"


def test_a_reply_that_the_request_does_not_declare_is_an_error_that_names_both() -> None:
    channel = DirectChannel(WELCOME, lambda request, answer: answer(Departed()))
    with pytest.raises(WireError, match="The engine answered Pause with Departed"):
        channel.ask(Pause(session="paris")).result()
