"""Loading and unloading the extension: its registrations, its imports, its streaming."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.tables import Displayed, card_of
from djinn_jupyter.magics import unload_ipython_extension
from tests.magics.conftest import Notebook

NAMES = """load unload stop status log run break breaks clear where inspect lens watch edit steer unsteer step
back resume fork tree sessions use share close diff swap rest sleep nap sweep path attribute direct text weight heads
why feature collect loss edges circuit graph add_module add_transcoders splice name remove_module add_adapter adapter
remove_adapter reproduce checkpoint restore accept vram move debugger pause study""".split()
HEAVY = ("torch", "numpy", "plotly", "ipywidgets", "zmq.asyncio", "msgspec")


def magics(notebook: Notebook) -> dict[str, Any]:
    found: dict[str, Any] = notebook.shell.magics_manager.magics["line"]
    return {name: magic for name, magic in found.items() if name.startswith("djinn_")}


def test_the_magics_are_these_and_each_has_help_with_every_option_explained(bare: Notebook) -> None:
    assert set(magics(bare)) == {f"djinn_{name}" for name in NAMES}
    cells = [name for name in bare.shell.magics_manager.magics["cell"] if name.startswith("djinn_")]
    assert sorted(cells) == ["djinn_edit", "djinn_run"]
    for name in NAMES:
        magic = magics(bare)[f"djinn_{name}"]
        assert f"%djinn_{name}" in magic.__doc__
        assert all(action.help for action in magic.parser._actions)
        summary = magic.parser.description.strip().splitlines()[0]
        assert summary.endswith(".")


def matchers(bare: Notebook) -> list[Any]:
    both = bare.shell.Completer.custom_matchers, bare.shell.Completer.magic_arg_matchers
    return [one for one in chain(*both) if "djinn" in one.__name__]


def test_unloading_takes_everything_away_and_loading_twice_registers_once(bare: Notebook) -> None:
    from djinn_jupyter.magics import load_ipython_extension

    load_ipython_extension(bare.shell, bare.client)
    assert len(matchers(bare)) == 1
    unload_ipython_extension(bare.shell)
    assert not magics(bare)
    assert not matchers(bare)


def test_loading_the_extension_imports_nothing_heavy() -> None:
    """A fresh interpreter checks it, as `%load_ext` does it; then when a load shows its line, for cards and messages
    take long under a debugger; and whatever views and magics need, it is neither torch nor plotly."""
    code = f"""
import sys
from itertools import chain
from types import SimpleNamespace
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
def new(names):
    return [name for name in names if name in sys.modules and name not in before]
shell.run_line_magic("load_ext", "djinn_jupyter")
print(new({HEAVY!r}))
from djinn_jupyter.magics import load_ipython_extension
load_ipython_extension(shell, SimpleNamespace(load=lambda *given, **named: print(new({HEAVY!r}))))
shell.run_cell("%djinn_load demo")
import djinn_jupyter.widgets.views, djinn_jupyter.api.session
from djinn_jupyter.magics import branching, changing, editing, loading, looking, memory, running
print(new(("torch", "plotly", "ipywidgets")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.strip().splitlines()
    assert lines[:2] == ["[]", "[]"]
    assert lines[-1] == "[]"


class Displays:
    """Stands in for IPython's display: the objects shown, and the updates of the display."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, view: object, *, raw: bool = False, display_id: bool = False) -> Displays:
        self.shown.append(f"show {view!r}".splitlines()[0])
        return self

    def update(self, view: object) -> None:
        self.shown.append(f"update {view!r}".splitlines()[0])


def in_a_kernel(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJINN_STATIC")
    monkeypatch.setattr(notebook.shell, "kernel", object(), raising=False)


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> Displays:
    made = Displays()
    monkeypatch.setattr("djinn_jupyter.magics.screen._display", made)
    return made


def test_in_a_kernel_tokens_stream_into_one_display(
    notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_kernel(notebook, monkeypatch)
    monkeypatch.setattr("djinn_jupyter.magics.screen.UPDATE_SECONDS", 0.0)
    monkeypatch.setattr("time.strftime", lambda form: "10:20:30")
    notebook.cell("%djinn_run The capital of France is")
    assert displays.shown == [
        "show running at 10:20:30, 1 token so far (session paris)",
        "update running at 10:20:30, 2 tokens so far (session paris)",
        "update running at 10:20:30, 3 tokens so far (session paris)",
        "update finished: 3 new tokens, ended by the asked number of tokens (session paris)",
    ]


def test_a_load_shows_a_line_before_the_client_is_imported(
    bare: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_kernel(bare, monkeypatch)
    seen: list[list[str]] = []
    load = bare.client.load
    monkeypatch.setattr(
        bare.client, "load", lambda *args, **given: (seen.append([*displays.shown]), load(*args, **given))[1]
    )
    bare.cell("%djinn_load demo")
    assert seen == [["show {'text/plain': 'loading demo'}"]]
    assert [one.partition(" ")[0] for one in displays.shown] == ["show", "update", "update"]


def test_updates_are_bounded_in_time(notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_kernel(notebook, monkeypatch)
    monkeypatch.setattr("djinn_jupyter.magics.screen.UPDATE_SECONDS", 1000.0)
    monkeypatch.setattr("time.monotonic", lambda: 2000.0)
    monkeypatch.setattr("time.strftime", lambda form: "10:20:30")
    notebook.cell("%djinn_run The capital of France is")
    assert displays.shown[:1] == ["show running at 10:20:30, 1 token so far (session paris)"]
    assert len(displays.shown) == 2


def test_static_shows_the_final_form_at_once(
    notebook: Notebook, displays: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook.shell, "kernel", object(), raising=False)
    monkeypatch.setenv("DJINN_STATIC", "1")
    notebook.cell("%djinn_run The capital of France is")
    notebook.cell("%djinn_load demo")
    assert [line.split(":")[0] for line in displays.shown] == ["show finished", "show demo"]


def test_a_result_that_a_cell_returns_is_displayed_as_the_magics_show_it(bare: Notebook) -> None:
    from djinn_jupyter.methods.sweep.api.grid import Grid
    from djinn_jupyter.methods.sweep.card import grid_view
    from tests.widgets.swept import swept

    formatter = bare.shell.display_formatter
    assert formatter is not None
    grid = Grid([swept()])
    view = grid_view(grid)
    data, _ = formatter.format(grid)
    assert (data["text/html"], data["text/plain"]) == (view.html, view.plain)
    unload_ipython_extension(bare.shell)
    assert formatter.format(grid)[0] == data


RESULTS = [getattr(dj, name) for name in dj.__all__ if isinstance(getattr(dj, name), type)]


@pytest.mark.parametrize("kind", [one for one in RESULTS if ".client." in one.__module__ or ".api" in one.__module__])
def test_each_public_result_displays_itself_without_the_extension(kind: type) -> None:
    if issubclass(kind, BaseException | RemoteEngine | RemoteSession):
        return
    assert issubclass(kind, Displayed)
    assert card_of(kind).__module__.startswith(
        "djinn_jupyter.widgets" if ".client." in kind.__module__ else "djinn_jupyter."
    )
