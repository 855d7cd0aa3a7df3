from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output

from djinn_jupyter.magics import load_ipython_extension, stand_ins
from djinn_jupyter.magics.kernel_state import KernelState
from tests.magics.double import EngineDouble, client_double


class Notebook:
    """A real shell with the magics, on an engine in memory. `cell` runs a cell and returns its output."""

    def __init__(self, shell: InteractiveShell, engine: EngineDouble, client: Any) -> None:
        self.shell, self.engine, self.client = shell, engine, client
        self.error = ""
        self.outputs: list[RichOutput] = []

    @property
    def state(self) -> KernelState:
        loaded = stand_ins.of(self.shell)
        return loaded.state

    def cell(self, source: str) -> str:
        """Return stdout, then the plain text of all displays; a failing cell fails the test."""
        text = self._run(source)
        assert not self.error, self.error
        return text

    def fails(self, source: str) -> str:
        """The one line that a failing cell prints."""
        self._run(source)
        assert self.error.startswith("UsageError: "), f"no one-line error, but: {self.error!r}"
        assert self.error.count("\n") == 1, f"more than one line: {self.error}"
        return self.error.removeprefix("UsageError: ").strip()

    def html(self) -> str:
        return "".join(output.data.get("text/html", "") for output in self.outputs)

    def _run(self, source: str) -> str:
        with capture_output() as captured:
            result = self.shell.run_cell(source)
        self.outputs = captured.outputs
        raised = result.error_before_exec or result.error_in_exec
        self.error = "" if raised is None else f"{type(raised).__name__}: {raised}\n"
        return captured.stdout + "\n".join(output.data.get("text/plain", "") for output in captured.outputs)


def last(notebook: Notebook, kind: type) -> Any:
    """The last request of this kind that reached the engine."""
    return [r for r in notebook.engine.channel.requests if isinstance(r, kind)][-1]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Magics registered, nothing loaded."""
    monkeypatch.setenv("JPY_SESSION_NAME", "work/paris.ipynb")
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    engine = EngineDouble()
    client = client_double(engine)
    load_ipython_extension(shell, client)
    yield Notebook(shell, engine, client)
    shell.history_manager.end_session()
    atexit.unregister(shell.atexit_operations)  # a thousand of them collect garbage for minutes when the run ends
    InteractiveShell.clear_instance()


@pytest.fixture
def notebook(bare: Notebook) -> Notebook:
    """The demo model loaded."""
    bare.cell("%djinn_load demo")
    return bare


@pytest.fixture
def stopped(notebook: Notebook) -> Notebook:
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is")
    return notebook
