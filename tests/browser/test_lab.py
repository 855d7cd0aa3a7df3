"""The bench itself: a notebook without Djinn runs, is seen, is saved, and is read again where there is no kernel."""

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


def test_a_notebook_runs_to_its_end(lab: LabServer, notebook: str, page: Page, artifacts: Path) -> None:
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


def test_an_error_in_a_cell_is_seen(lab: LabServer, page: Page) -> None:
    opened = LabPage.open(page, lab.address(write(lab, "broken.ipynb", "1 / 0")))
    opened.run_all()
    assert opened.errors() == ["ZeroDivisionError: division by zero"]


def test_a_saved_notebook_is_read_without_a_kernel(
    lab: LabServer, kernelless_lab: LabServer, notebook: str, page: Page, artifacts: Path
) -> None:
    opened = LabPage.open(page, lab.address(notebook))
    opened.run_all()
    opened.save()
    reader = LabPage.open(page, kernelless_lab.address(notebook))
    reader.without_kernel()
    reader.show_everything()
    assert kernelless_lab.running_kernels() == "[]"
    expect(reader.drawn("b.drawn")).to_be_visible()
    reader.screenshots(artifacts / "trivial-reopened.png")
