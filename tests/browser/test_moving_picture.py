"""Break, look, edit, resume and go back, cell by cell in a notebook: the frames of the README's moving picture."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer
from tests.browser.test_lab import write

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
