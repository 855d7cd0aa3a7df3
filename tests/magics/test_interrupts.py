"""Interrupts of magics that wait for the engine."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.magics.conftest import Notebook


@pytest.mark.parametrize("line", ["%djinn_lens", "%djinn_sweep resid_post --metric logit(5)", "%djinn_loss"])
def test_an_interrupt_of_any_magic_is_one_line(stopped: Notebook, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    result = Future.result

    def break_in(*arguments: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return result(*arguments)

    monkeypatch.setattr("concurrent.futures.Future.result", break_in)
    assert stopped.fails(line).startswith("Interrupted. The ")
