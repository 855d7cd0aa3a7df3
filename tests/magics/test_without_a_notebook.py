"""Magics where no notebook is known: in consoles, and in kernels that programs start."""

from __future__ import annotations

import os
import sys

import pytest

from tests.magics.conftest import Notebook


def test_without_a_notebook_the_session_has_the_name_of_the_process(
    bare: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert f"session ipython-{os.getpid()}:" in bare.cell("%djinn_load demo")
    assert "session rome:" in bare.cell("%djinn_load demo --session rome")


def test_what_changes_is_shown_in_a_notebook_only(bare: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console drops updates of a display, and would say "running" for ever."""
    monkeypatch.setenv("DJINN_STATIC", "0")
    assert not bare.state.screen.is_static
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert bare.state.screen.is_static
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    assert not bare.state.screen.is_static
