"""Notebooks run by programs, and IPython alone: no file gives the session a name, and errors are read from outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import v4

pytestmark = pytest.mark.processes
CELLS = ("%load_ext djinn_jupyter", "%djinn_load demo", "%djinn_run What is the capital of France?")


def test_a_notebook_that_a_program_executes_has_a_session_and_stops_at_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in (*CELLS, "%djinn_break 99")])
    with pytest.raises(CellExecutionError, match=r"UsageError: .*layers 0\.\.7"):
        NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    loaded, ran, failed = (cell.outputs for cell in notebook.cells[1:])
    assert re.search(r"session (kernel-|tmp)\w+: ", loaded[-1]["data"]["text/plain"])  # its connection file
    assert "finished: " in ran[-1]["data"]["text/plain"]
    assert (failed[-1]["output_type"], failed[-1]["ename"]) == ("error", "UsageError")
    assert failed[-1]["traceback"] == [f"UsageError: {failed[-1]['evalue']}"]


def test_ipython_without_a_kernel_runs_the_same_lines(tmp_path: Path) -> None:
    script = tmp_path / "cells.ipy"
    script.write_text("\n".join([*CELLS[:2], "%djinn_run The capital of France is"]))
    env = {name: value for name, value in os.environ.items() if name != "JPY_SESSION_NAME"}
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert "session ipython-" in done.stdout, done.stdout + done.stderr
    assert "finished: " in done.stdout
