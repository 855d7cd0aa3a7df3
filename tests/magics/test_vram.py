"""Displays that change in their place: the chart of memory, and the bar of what is received."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.link.io_thread import SoFar
from djinn_jupyter.magics import screen as redrawn
from djinn_jupyter.magics.screen import ReceivingBar
from djinn_jupyter.widgets.result import receiving_view
from tests.magics.conftest import Notebook
from tests.waiting import SECONDS


class Displays:
    """Stands in for IPython's display: the objects shown and their replacements."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.frozen = threading.Event()

    def __call__(self, view: object, display_id: bool = False) -> Displays:
        self.shown.append(view)
        return self

    def update(self, view: Any) -> None:
        self.shown.append(view)
        if view.html:
            self.frozen.set()


@pytest.fixture
def displays(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> Displays:
    made = Displays()
    monkeypatch.setattr("djinn_jupyter.magics.screen._display", made)
    monkeypatch.setattr(notebook.shell, "kernel", MagicMock(), raising=False)
    monkeypatch.delenv("DJINN_STATIC")
    return made


def followed(trace: MemoryTrace, count: int) -> None:
    """Return when the trace has this many readings."""
    enough = threading.Event()
    heard = trace._heard

    def hear(t: MemoryTrace) -> None:
        heard(t)
        if len(t.readings) >= count:
            enough.set()

    trace._heard = hear
    assert enough.wait(SECONDS)


def test_static_prints_the_final_form_at_once(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_vram -o trace")
    assert said.startswith("memory of demo: 41.7 MiB of 1.03 GiB")
    assert said.splitlines()[-3].split("  ")[0] == "the engine's process"
    assert said.splitlines()[-3].endswith("500 MiB")
    assert "data:image/svg+xml" in notebook.html()
    assert not notebook.shell.user_ns["trace"].running


def test_the_chart_follows_until_it_is_stopped_and_is_then_frozen_in_its_place(
    notebook: Notebook, displays: Displays
) -> None:
    notebook.cell("%djinn_vram -o trace")
    trace = notebook.shell.user_ns["trace"]
    followed(trace, 3)
    widget = displays.shown[0]
    assert widget.course["bands"][0]["name"] == "weights"
    assert "weights" in widget.said
    notebook.cell("%djinn_swap out\n%djinn_vram stop")
    (frozen,) = (shown for shown in displays.shown[2:] if shown.html)
    assert "moved 1.60 GiB to host in 34 ms" in frozen.html
    assert ", 1 move" in frozen.plain
    assert widget.comm is None
    assert "No memory chart runs" in notebook.fails("%djinn_vram stop")


def test_a_notebook_saved_while_it_runs_has_the_figure_its_numbers_and_their_moment(
    notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("djinn_jupyter.magics.live_chart.STILL_SECONDS", 0.0)
    notebook.cell("%djinn_vram -o trace")
    still = displays.shown[1]._repr_mimebundle_()
    assert "data:image/svg+xml" in still["text/html"]
    assert all("41.7 MiB of 1.03 GiB" in still[form] for form in ("text/html", "text/plain"))
    assert re.search(r"at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", still["text/html"])
    notebook.cell("%djinn_swap out")
    followed(notebook.shell.user_ns["trace"], len(notebook.shell.user_ns["trace"].readings) + 2)
    assert any(", 1 move" in shown.plain for shown in displays.shown[2:])


def test_its_button_freezes_it(notebook: Notebook, displays: Displays) -> None:
    notebook.cell("%djinn_vram -o trace")
    displays.shown[0]._handle_custom_msg({"press": "freeze"}, [])
    assert displays.frozen.wait(SECONDS)
    assert not notebook.shell.user_ns["trace"].running


def test_it_ends_by_itself_after_its_seconds(notebook: Notebook, displays: Displays) -> None:
    notebook.cell("%djinn_vram --seconds 0.01")
    assert displays.frozen.wait(SECONDS)


def test_an_engine_that_ends_freezes_it_and_says_so(notebook: Notebook, displays: Displays) -> None:
    notebook.cell("%djinn_vram")
    notebook.engine.dead = True
    assert displays.frozen.wait(SECONDS)
    assert "ended: The engine of demo has ended" in displays.shown[-1].html


class Line:
    """The line to the engine, while it is down: what is asked waits."""

    def __init__(self, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ask, self._channel, self._monkeypatch = channel.ask, channel, monkeypatch
        self._waiting: list[tuple[Any, Future[Any]]] = []
        monkeypatch.setattr(channel, "down_since", time.time())
        monkeypatch.setattr(channel, "ask", self._wait)

    def _wait(self, request: Any) -> Future[Any]:
        self._waiting.append((request, Future()))
        return self._waiting[-1][1]

    def mend(self) -> None:
        self._monkeypatch.setattr(self._channel, "down_since", None)
        self._monkeypatch.setattr(self._channel, "ask", self._ask)
        for request, future in self._waiting:
            future.set_result(self._ask(request).result())


def stands(widget: Any, words: str) -> None:
    """Return when the chart says so beside its title."""
    told = threading.Event()
    widget.observe(lambda change: told.set() if words in change["new"] else None, "standing")
    assert words in widget.standing or told.wait(SECONDS)


def test_a_line_that_is_down_is_said_on_the_chart_and_so_is_its_return(
    notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.cell("%djinn_vram -o trace")
    widget = displays.shown[0]
    stands(widget, "live")
    line = Line(notebook.engine.channel, monkeypatch)
    stands(widget, "is down since ")
    assert widget.standing.endswith("; waiting")
    line.mend()
    stands(widget, "live")
    followed(notebook.shell.user_ns["trace"], len(notebook.shell.user_ns["trace"].readings) + 1)


def test_a_chart_that_is_frozen_while_its_line_is_down_keeps_that(
    notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.cell("%djinn_vram")
    line = Line(notebook.engine.channel, monkeypatch)
    stands(displays.shown[0], "is down since ")
    notebook.cell("%djinn_vram stop")
    assert "is down since " in displays.shown[-1].html
    line.mend()


def test_there_is_one_chart_at_a_time_and_none_without_a_model(notebook: Notebook, displays: Displays) -> None:
    notebook.cell("%djinn_vram\n%djinn_vram -o trace")
    assert len(displays.shown) == 6
    notebook.cell("%djinn_unload")
    assert len(displays.shown) == 8
    assert not notebook.shell.user_ns["trace"].running


def test_a_trace_of_ones_own_can_be_drawn(notebook: Notebook) -> None:
    notebook.cell("%djinn_load demo -o engine\ntrace = engine.memory_trace()\n%djinn_swap out\n_ = trace.stop()")
    assert "1 move" in notebook.cell("%djinn_vram --of trace")
    assert "knows no 'nothing'" in notebook.fails("%djinn_vram --of nothing")
    assert "not 'now'." in notebook.fails("%djinn_vram now")


class Screen:
    """A screen that notes what is shown."""

    is_static = False

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show_live(self, view: Any) -> Any:
        self.shown.append(view.plain)
        return SimpleNamespace(update=lambda card: self.shown.append(card._repr_mimebundle_()["text/plain"]))

    def show(self, view: Any) -> None:
        raise AssertionError("It is shown in its place alone.")


def at(received: int) -> SoFar:
    return SoFar(way="received", done=received * 2**20, total=8 * 2**20, carried=received * 2**19, seconds=4.0)


def test_a_bar_fills_in_one_place_and_ends_as_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrawn, "DRAWN_SECONDS", 0.0)
    screen = Screen()
    bar = ReceivingBar(screen)
    bar(at(2), over=False)
    bar(at(8), over=True)
    bar(at(1), over=False)
    bar(at(1), over=True)
    assert screen.shown == [
        "receiving 2.00 MiB of 8.00 MiB, 256 KiB/s, about 12 s left; interrupt the kernel to end it",
        "received 8.00 MiB in 4 s, 1.00 MiB/s over the line",
        "receiving 1.00 MiB of 8.00 MiB, 128 KiB/s, about 28 s left; interrupt the kernel to end it",
        "given up: 1.00 MiB of 8.00 MiB had come",
    ]
    assert "width:25%" in receiving_view(at(2)).html


def test_where_outputs_are_static_nothing_is_shown() -> None:
    screen = Screen()
    screen.is_static = True
    ReceivingBar(screen)(at(2), over=False)
    ReceivingBar(screen)(at(8), over=True)
    assert screen.shown == []
