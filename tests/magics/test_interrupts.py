"""Interrupts of magics that wait for the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.magics.conftest import Notebook


@pytest.mark.parametrize("line", ["%djinn_lens", "%djinn_sweep resid_post --metric logit(5)", "%djinn_loss"])
def test_an_interrupt_of_any_magic_is_one_line(stopped: Notebook, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    def break_in(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", break_in)
    assert stopped.fails(line).startswith("Interrupted. The ")
