"""Each front end, run as its users run it, without a window: what its reader sees of each kind of display."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient
from nbformat import v4

from tests.front_ends.lines import MAGICS, PYTHON, RAISED, as_html, magics_too, setup
from tests.widgets.static import faults_in

Shown = dict[str, str]
SECONDS: Final = 240
MARK: Final = "shows:{}:here"  # above the display of a kind
ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment() -> dict[str, str]:
    """Return the environment of a person: no notebook is named, and outputs may change."""
    return {name: value for name, value in os.environ.items() if name not in ("JPY_SESSION_NAME", "DJINN_STATIC")}


def program(*command: str, given: str = "", place: Path, status: int = 0) -> str:
    """Return all that a program prints; it must end with this status."""
    done = subprocess.run(
        command,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=environment() | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        cwd=place,
        check=False,
    )
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


def module(name: str, *arguments: str, given: str = "", place: Path, status: int = 0) -> str:
    return program(sys.executable, "-m", name, *arguments, given=given, place=place, status=status)


def notebook_of(sources: dict[str, str], place: Path, name: str) -> Path:
    """Write a notebook, each cell tagged with what it shows, below a text that names it."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = []
    for kind, source in sources.items():
        tags = {"tags": [kind]}
        cells += [v4.new_markdown_cell(MARK.format(kind)), v4.new_code_cell(source, metadata=tags)]
    path = place / f"{name}.ipynb"
    nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def outputs(notebook: Any) -> Shown:
    """Return what is saved in a notebook, by the tag of its cell."""
    return {
        cell.metadata["tags"][0]: "\n".join(map(_output, cell.outputs))
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.metadata.get("tags")
    }


def _output(one: Any) -> str:
    if one.output_type == "stream":
        return str(one.text)
    return ANSI.sub("", "\n".join(one.traceback)) if one.output_type == "error" else as_html(one.data)


def executed(place: Path, name: str, *, before: str = "") -> Any:
    """Execute the notebook by nbclient, all its cells in spite of errors."""
    path = notebook_of(({"before": before} if before else {}) | magics_too(name), place, name)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": place}}
    ).execute(env=environment())
    return notebook


def nbclient(place: Path) -> Shown:
    return outputs(executed(place, "client"))


def vs_code(place: Path) -> Shown:
    """VS Code names its notebook by a variable, and takes HTML without scripts."""
    shown = outputs(executed(place, "code", before=f"__vsc_ipynb_file__ = {str(place / 'code.ipynb')!r}"))
    assert sum("No sidebar here" in one for one in shown.values()) == 1
    for kind in (*PYTHON, "memory"):
        assert "<div" in shown[kind]
        assert faults_in(shown[kind]) == [], kind
    return shown


def split(page: str) -> Shown:
    """Return the parts of a rendered page or of a terminal below the marks, by kind."""
    _, *parts = re.split(MARK.format("(.*?)"), page)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def nbconvert(place: Path) -> Shown:
    notebook_of(magics_too("convert"), place, "convert")
    module("nbconvert", "--execute", "--allow-errors", "--to", "html", "convert.ipynb", place=place)
    return split((place / "convert.html").read_text())


def pandoc(place: Path) -> Shown:
    """Quarto uses these two."""
    nbformat.write(executed(place, "pandoc"), place / "pandoc.ipynb")
    return split(program("pandoc", "--from", "ipynb", "--to", "html", "pandoc.ipynb", place=place))


def papermill(place: Path) -> Shown:
    """It ends at the first error, so the two that are raised are the last cells of two notebooks; its parameter stands
    in the line of a magic."""
    shown: Shown = {}
    sources = {kind: source for kind, source in magics_too("mill").items() if not kind.startswith("error")}
    raised = {"error of Python": "session.breakpoint(wrong)", "error of a magic": "%djinn_break {wrong}"}
    for kind, source in raised.items():
        path = notebook_of(sources | {kind: source}, place, "mill")
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.insert(0, v4.new_code_cell("wrong = 4", metadata={"tags": ["parameters"]}))
        nbformat.write(notebook, path)
        module("papermill", "mill.ipynb", "out.ipynb", "-p", "wrong", "99", "--no-progress-bar", place=place, status=1)
        shown |= outputs(nbformat.read(place / "out.ipynb", as_version=4))
    return shown


def terminal(name: str, *arguments: str, place: Path) -> Shown:
    """Type the lines, each with a mark printed before it."""
    mark = MARK.replace("shows", "sho' 'ws")  # so that an echo of the line is no mark
    typed = [f"print('{mark.format(kind)}')\n{source}\n" for kind, source in magics_too(name).items()]
    return split(ANSI.sub("", module(name, *arguments, given="".join(typed) + "exit\n", place=place)))


def ipython(place: Path) -> Shown:
    return terminal("IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", place=place)


def console(place: Path) -> Shown:
    return terminal("jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.banner=", place=place)


MARIMO: Final = """import marimo
app = marimo.App()

@app.cell
def _():
    {setup}
    return dj, engine, session
"""


CAUGHT_THERE: Final = """try:
        session.breakpoint(99)
    except dj.DjinnError as error:
        caught = error
    caught"""


def marimo(place: Path) -> Shown:
    """marimo has no magics; its memory is drawn by Python."""
    memory = "with engine.memory_trace() as trace:\n        pass\n    trace"
    sources = {**PYTHON, "returned error": CAUGHT_THERE, "memory": memory, **RAISED}
    script = MARIMO.format(setup="\n    ".join(setup("marimo")))
    script += "".join(f"\n@app.cell\ndef _(dj, engine, session):\n    {one}\n    return\n" for one in sources.values())
    (place / "nb.py").write_text(f"{script}\napp.run() if __name__ == '__main__' else None\n")
    module("marimo", "export", "html", "nb.py", "-o", "nb.html", "--no-sandbox", place=place, status=1)
    page = (place / "nb.html").read_text()
    session = json.JSONDecoder().raw_decode(page, page.index("{", page.index('"session":')))[0]
    cells = [cell["outputs"] for cell in session["cells"]][1:]
    return {kind: "\n".join(map(_of_marimo, of)) for kind, of in zip(sources, cells, strict=True)}


def _of_marimo(output: dict[str, Any]) -> str:
    if output["type"] == "error":
        return str(output["evalue"])
    return as_html(output["data"])


FRONT_ENDS: Final[dict[str, Callable[[Path], Shown]]] = {
    "VS Code": vs_code,
    "`ipython`": ipython,
    "`jupyter console`": console,
    "nbclient": nbclient,
    "nbconvert": nbconvert,
    "papermill": papermill,
    "nbclient and pandoc": pandoc,
    "marimo": marimo,
}
KINDS: Final = (*PYTHON, *RAISED, *reversed(MAGICS))  # as in the table
