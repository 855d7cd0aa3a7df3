"""A line that is down: who waits hears of it once, in the thread that waits, and can end the waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from djinn_jupyter.api.batches import run_until_stop
from djinn_jupyter.errors import UnknownSession, WireError
from djinn_jupyter.link import io_thread
from djinn_jupyter.link.io_thread import AwaitedReply, LineNotice, ReceivingNotice, awaited
from djinn_jupyter.remote.large_messages import SoFar
from djinn_jupyter.wire.replies import Departed, Pong, Welcome
from djinn_jupyter.wire.requests import Pause, Run
from tests.client.direct import DirectChannel
from tests.process.fake_engine import DESCRIPTION

WELCOME = Welcome(version="0", model=DESCRIPTION, attached=())


class Line:
    """A line that the test loses and mends."""

    def __init__(self) -> None:
        self.down_since: float | None = None
        self.said: list[str] = []
        self.place = "gpu-box:5556"
        self.notice = LineNotice(lambda: self.place, lambda: self.down_since, self.said.append)


def no_one() -> None:
    raise AssertionError("No one gave it up.")


@pytest.fixture
def line() -> Line:
    return Line()


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


@pytest.mark.usefixtures("quickly")
def test_a_reply_whose_waiting_is_interrupted_is_given_up() -> None:
    given_up = list[bool]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    reply = AwaitedReply(interrupt, lambda: given_up.append(True))
    with pytest.raises(KeyboardInterrupt):
        reply.result()
    assert given_up == [True]


class Receiving:
    progress: SoFar | None = None
    latest: SoFar | None = None


def test_a_reply_that_takes_a_while_is_told_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    receiving = Receiving()
    notice = ReceivingNotice(lambda: receiving)
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


def test_a_reply_that_comes_at_once_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    receiving = Receiving()
    notice = ReceivingNotice(lambda: receiving)
    receiving.progress = SoFar(way="received", done=1, total=2, carried=1, seconds=io_thread.SHOWN_SECONDS / 2)
    notice.look()
    receiving.progress, receiving.latest = None, receiving.progress
    notice.look()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quickly")
def test_an_interrupt_ends_the_waiting() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        awaited(Future[None](), interrupt)


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
