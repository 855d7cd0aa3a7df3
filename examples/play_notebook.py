"""Play a notebook in the terminal: each cell as it is typed, and what it answers, as text. `make demo` calls this.

What a cell says while it runs, as the start of an engine does, is one line that is rewritten and gone at its end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from djinn_jupyter.link.waiting import TerminalProgress


class Player(NotebookClient):
    """A client that shows the last line of what a running cell displays, where it writes to a terminal."""

    shown = TerminalProgress()

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        text = msg["content"].get("data", {}).get("text/plain", "")
        if msg["msg_type"] in ("display_data", "update_display_data") and text:
            self.shown.second(text.splitlines()[-1])
        return super().process_message(msg, cell, cell_index)


def play(path: Path) -> bool:
    """Run the cells in a kernel and print both sides. False as soon as a cell raises; the file is not changed."""
    # What a Jupyter server would say of a notebook beside it: the notebook itself may be open in JupyterLab.
    os.environ["JPY_SESSION_NAME"] = str(path.resolve().parent / "terminal" / path.name)
    notebook = nbformat.read(path, as_version=4)
    client = Player(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}})
    client.extra_arguments = ["--IPKernelApp.log_level=ERROR"]  # its warning about ports on loopback is not for readers
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            show_source(cell)
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                print(error)
                return False
            finally:
                client.shown.clear()
            for output in cell.get("outputs", []):
                show_output(output)
    return True


def show_source(cell: Any) -> None:
    if cell.cell_type == "code":
        print("\n".join(f">>> {line}" for line in cell.source.splitlines()), flush=True)
    else:
        print(f"\n{cell.source}\n", flush=True)


def show_output(output: Any) -> None:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    print("\n".join(f"    {line}" for line in text.splitlines()), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: play_notebook.py NOTEBOOK")
    sys.exit(not play(Path(sys.argv[1])))
