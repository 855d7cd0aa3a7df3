"""The bench itself: a notebook without Djinn runs, is seen, is saved, and is read again where there is no kernel. And
the first picture of Djinn: break, look, edit, resume and go back, cell by cell."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer

DRAW = "from IPython.display import HTML\nHTML('<b class=\"drawn\">drawn</b>')"
NAME = "import os\nos.path.basename(os.environ['JPY_SESSION_NAME'])"


def write(lab: LabServer, name: str, *sources: str) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / name)
    return name


@pytest.fixture
def notebook(lab: LabServer, request: pytest.FixtureRequest) -> str:
    return write(lab, f"{request.node.name}.ipynb", DRAW, *["print(6 * 7)"] * 30, NAME)


def test_a_notebook_runs_to_its_end(
    lab: LabServer, kernelless_lab: LabServer, notebook: str, page: Page, artifacts: Path
) -> None:
    """It is saved, and read again without a kernel; an error in a cell of another is seen."""
    opened = LabPage.open(page, lab.address(notebook))
    opened.run_all()
    opened.show_everything()
    assert opened.errors() == []
    assert [o["text"] for o in opened.outputs() if o["output_type"] == "stream"] == ["42\n"] * 30
    assert opened.outputs()[-1]["data"]["text/plain"] == repr(notebook)
    expect(opened.drawn("b.drawn")).to_be_visible()
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        assert all(
            picture.stat().st_size for picture in opened.screenshots(artifacts / f"trivial-{theme.split()[1]}.png")
        )
    opened.save()
    reader = LabPage.open(page, kernelless_lab.address(notebook))
    reader.without_kernel()
    reader.show_everything()
    assert kernelless_lab.running_kernels() == "[]"
    expect(reader.drawn("b.drawn")).to_be_visible()
    opened = LabPage.open(page, lab.address(write(lab, "broken.ipynb", "1 / 0")))
    opened.run_all()
    assert opened.errors() == ["ZeroDivisionError: division by zero"]


# The frames of the README's moving picture.
CELLS = {
    "%load_ext djinn_jupyter\n%djinn_load demo": "loaded",
    "%djinn_break 4": "resid_post.4",
    "%djinn_run The capital of France is": "Paused at",
    "%djinn_edit scale 0 --positions -1 --effect": "top token changed from",
    "%djinn_resume --free": "Finished",
    "%djinn_back": "Paused at",
}
SIZE = (880, 620)
_TO_THE_CELL = "cell => cell.scrollIntoView({block: 'end'})"


def test_a_pass_is_stopped_edited_and_resumed_cell_by_cell(lab: LabServer, page: Page, artifacts: Path) -> None:
    page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
    opened = LabPage.open(page, lab.address(write(lab, "moving.ipynb", *CELLS)))
    opened.command("application:toggle-left-area")
    opened.wait_for_kernel()
    for number, (source, words) in enumerate(CELLS.items()):
        opened.run_cell(source)
        cell = opened.drawn(".jp-CodeCell").nth(number)
        expect(cell.locator(".jp-OutputArea")).to_contain_text(words)
        opened.wait_for_kernel()
        cell.evaluate(_TO_THE_CELL)
        page.screenshot(path=artifacts / f"frame-{number}.png")
    assert opened.errors() == []
