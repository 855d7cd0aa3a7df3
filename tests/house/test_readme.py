"""The code in the README runs as shown; pictures and names in the documents are there."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import djinn_jupyter as dj
from djinn_jupyter.link.waiting import TerminalProgress

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COPYING = ROOT / "docs" / "copy_pictures.py"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "evaluation" / "README.md"])


def block(heading: str) -> str:
    """The first code block below a heading of the README."""
    found = re.search(rf"^## {heading}\n.*?^```\w*\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def test_the_readme_fits_on_two_screens_and_its_moving_picture_is_small() -> None:
    assert len(README.splitlines()) <= 90
    assert (ROOT / "docs" / "pictures" / "break-edit-resume.webp").stat().st_size <= 1_500_000


def said_by(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_picture_is_shown_somewhere_and_taken_by_a_browser_test() -> None:
    pictures = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    shown = {name for document in DOCUMENTS for name in re.findall(r"pictures/([\w-]+\.\w+)\)", document.read_text())}
    sources = dict(re.findall(r'^    "([\w-]+\.png)": \("([\w-]+)\.png"', COPYING.read_text(), re.MULTILINE))
    assert pictures == shown == {*sources, "break-edit-resume.webp"}
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "browser").glob("test_*.py"))
    kinds = {re.sub(r"-(light|dark)$", "", source) for source in sources.values()}
    assert "frame-{number}.png" in tests
    assert [
        kind for kind in kinds if f"{kind}-" not in tests and f"{kind}.png" not in tests and f'"{kind}"' not in tests
    ] == []


def test_every_name_in_the_architecture_is_in_the_code() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "djinn_jupyter").rglob("*.py")}
    files = re.findall(r"`([\w/]+\.py)`", text)
    classes = {name for name, _ in re.findall(r"`([A-Z]\w+)(\.\w+)?`", text)} - {"Cache"}  # transformers'
    assert len(files) > 10
    assert [file for file in files if not any(f"/{path}".endswith(f"/{file}") for path in package)] == []
    assert len(classes) > 10
    assert [name for name in classes if not any(f"class {name}" in source for source in package.values())] == []


@pytest.mark.processes
def test_the_seven_lines_of_the_readme_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "readme.ipynb"))
    lines = block("In a notebook").splitlines()
    notebook = new_notebook(cells=[new_code_cell(line) for line in lines])
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert len(lines) == 7
    run, edit, resume, back = (nbformat.v4.writes(new_notebook(cells=[cell])) for cell in notebook.cells[3:])
    assert "paused at resid_post.4" in run
    assert "top token changed from ' Paris'" in edit
    assert "finished" in resume
    assert "paused at resid_post.4" in back


@pytest.mark.processes
def test_the_readmes_python_runs_without_jupyter() -> None:
    said = said_by("-c", block("Without Jupyter"))
    assert "Paused at resid_post.4 (breakpoint)" in said
    assert "(5, 128)" in said
    assert "Finished" in said


@pytest.mark.processes
def test_the_example_without_jupyter_runs() -> None:
    said = said_by("examples/without_jupyter.py")
    assert "the same bits as the plain run: True" in said
    assert "relative size 1.00" in said


def test_what_a_cell_says_while_it_runs_is_one_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = runpy.run_path(str(ROOT / "examples" / "play_notebook.py"))
    cell = new_code_cell("%djinn_load demo")
    client = playing["Player"](new_notebook(cells=[cell]))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    client.shown = TerminalProgress(terminal)
    client.clear_before_next_output = False  # what executing a cell begins with
    content = {"data": {"text/plain": "loading demo\nfinding the layers (2 s)"}, "metadata": {}, "transient": {}}
    kind = {"msg_type": "display_data"}
    client.process_message({**kind, "header": kind, "parent_header": {}, "content": content}, cell, 0)
    assert terminal.getvalue() == "finding the layers (2 s)"
    client.shown.clear()
    assert terminal.getvalue().split("\r")[1].strip() == ""
    assert len(cell.outputs) == 1


@pytest.mark.processes
def test_the_quickstart_plays_in_a_terminal_while_it_is_open_in_jupyterlab() -> None:
    """The same command as `make demo`."""
    held = dj.load("demo").session(str(ROOT / "notebooks" / "01_quickstart.ipynb"), fresh=True)
    said = said_by("examples/play_notebook.py", "notebooks/01_quickstart.ipynb")
    assert held.describe().tokens == 0
    held.close()
    assert "top token changed from ' Paris' to ' Rome'" in said
    assert "From here" in said
