"""Over a slow line: a bar while a large reply arrives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.magics import screen as redrawn
from djinn_jupyter.remote.bar import receiving_view
from djinn_jupyter.remote.large_messages import SoFar
from djinn_jupyter.remote.receiving import ReceivingBar


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
    bar = ReceivingBar(screen)  # type: ignore[arg-type]
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
    ReceivingBar(screen)(at(2), over=False)  # type: ignore[arg-type]
    ReceivingBar(screen)(at(8), over=True)  # type: ignore[arg-type]
    assert screen.shown == []
