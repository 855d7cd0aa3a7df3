"""The rows of pages in docs/front_ends.md, seen in Chromium. `make front-ends` has JupyterLab 4.4 beside the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import jupyterlab
import nbformat
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import chromium
from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer, lab_server
from tests.front_ends.front_ends import KINDS, Shown, notebook_of
from tests.front_ends.lines import form, magics_too
from tests.front_ends.table import PAGES, TABLE

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.browser, pytest.mark.timeout(900)]
CANVAS = ".djinn-memory canvas[data-draws]"


@contextmanager
def served(name: str, place: Path) -> Iterator[tuple[LabServer, Callable[[str], str]]]:
    (place / "notebooks").mkdir()
    application = "notebook" if name == "Notebook 7" else "jupyterlab"
    with lab_server(place / "notebooks", log=place / "log", application=application) as server:
        yield server, server.in_notebook_7 if application == "notebook" else server.address


def seen(browser: Browser, name: str, place: Path) -> Shown:
    """Run the lines one by one in the page; return the HTML that each leaves. The chart is seen as long as it lives."""
    sources = magics_too("page")
    with served(name, place) as (server, address):
        path = notebook_of(sources, server.folder, "page")
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        nbformat.write(notebook, path)
        page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        page.set_default_timeout(180_000)
        opened = LabPage.open(page, address(path.name))
        opened.wait_for_kernel()
        if name != "Notebook 7":
            assert page.evaluate("window.jupyterapp.version").startswith(name.split()[1])
        live = ""
        for kind, source in sources.items():
            opened.run_cell(source)
            if kind == "memory":
                live = opened.drawn(CANVAS).first.evaluate("canvas => canvas.closest('.jp-OutputArea').innerHTML")
        expect(opened.drawn(CANVAS)).to_have_count(0)
        opened.show_everything()
        cells = opened.drawn(".jp-CodeCell")
        left = {kind: cells.nth(n).locator(".jp-Cell-outputArea").inner_html() for n, kind in enumerate(sources)}
        page.context.close()
    assert "No sidebar" not in "".join(left.values())
    return left | {"memory": left["memory"] + live}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Shown]]:
    """A call that runs a page once."""
    with chromium() as browser:
        yield cache(lambda name: seen(browser, name, tmp_path_factory.mktemp("page")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows(shown: Callable[[str], Shown], name: str, kind: str) -> None:
    assert form(kind, shown(name)[kind]) == TABLE[name][kind], jupyterlab.__version__
