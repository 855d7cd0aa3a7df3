"""Every magic, with any value for each of its options and for all that it takes by place: it is done, or answered in
one line. Files that no file system takes are among them, and variables of another kind."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from djinn_jupyter.errors import DjinnError, EngineUnavailable
from djinn_jupyter.magics import load_ipython_extension
from djinn_jupyter.magics.parsing import OneLine
from tests.magics.conftest import Notebook

VALUES = ("~nobody-here/x", "a/" * 2500, "nan", "['a']", "words")
ENDING = ("djinn_unload",)  # after which nothing else is asked


def magics() -> list[str]:
    """The names of all magics, from the shell that they are registered in."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    found = sorted(name for name in shell.magics_manager.magics["line"] if name.startswith("djinn_"))
    InteractiveShell.clear_instance()
    return [name for name in found if name not in ENDING]


def lines(magic: Any, name: str, value: str) -> list[str]:
    """The line of a magic with a value for all that it takes by place, and that of each option beside."""
    options = [one for one in magic.parser._actions if one.option_strings and one.nargs != 0]
    placed = [one for one in magic.parser._actions if not one.option_strings]
    needed = " ".join("4" for one in placed if one.nargs not in ("?", "*"))
    return [
        f"%{name} " + " ".join(value for _ in placed),
        *(f"%{name} {needed} {one.option_strings[-1]} {value}" for one in options),
    ]


def no_engine(engine: object, to: str, **_: object) -> None:
    raise EngineUnavailable(f"No engine {to!r} runs.")


@pytest.mark.parametrize("name", magics())
def test_any_value_is_taken_or_answered_in_one_line(stopped: Notebook, name: str) -> None:
    stopped.shell.user_ns["words"] = "some words"
    stopped.client.beside = no_engine
    magic = stopped.shell.magics_manager.magics["line"][name]
    for value in VALUES:
        for line in lines(magic, name, value):
            raised = stopped.shell.run_cell(line).error_in_exec
            assert raised is None or isinstance(raised, OneLine | DjinnError), (line[:200], raised)
