"""The sidebar's tree lists the strongest features of an added module at a stop; a click breaks there, another edits."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 9"
ADD = "from djinn_jupyter import demo, load\nsae = load('demo', stops_kept=9).add_module('sae', demo.SAE_PATH)"
RUN, ON = "%djinn_break sae.4 --once\n%djinn_run The capital of France is", "%djinn_resume --free"
AGAIN, END = "%djinn_run The capital of France is", "%djinn_stop --forget --force"


def test_features_of_a_stop_are_broken_at_and_edited_by_a_click(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "features.ipynb", LOAD, ADD, RUN, ON, AGAIN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD, ADD, RUN):
            opened.run_cell(source)
        sidebar.stands("features", "at sae.4")
        for title in ("Edges", "Activation"):
            sidebar.fold(title)
        for label in ("Layer 4", "sae"):
            sidebar.row(label).locator(".djinn-Row-caret").click()
        rows = sidebar.whole.locator(".djinn-Row[aria-level='3']")
        expect(rows.first).to_be_visible()
        strongest = rows.first.locator(".djinn-Row-label").inner_text()
        value = rows.first.locator(".djinn-Row-detail").inner_text()
        assert float(value.replace(",", "")) > 0
        rows.first.locator(".djinn-Row-label").click()
        expect(sidebar.whole.get_by_label(f"Breakpoint at sae.4{strongest} is on")).to_be_visible()
        page.screenshot(path=artifacts / "features.png")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "features-dark.png")
        assert sidebar.defects() == []
        sidebar.whole.get_by_label(f"Set sae.4{strongest} to zero at all positions").click()
        expect(sidebar.row(strongest).locator(".djinn-Row-detail")).not_to_have_text(value)
        sidebar.fold("Activation")
        expect(sidebar.whole.get_by_label("Edits of this stop")).to_contain_text("zero")
        opened.run_cell(ON)
        opened.run_cell(AGAIN)
        expect(sidebar.whole.locator(".djinn-Breakpoints")).to_contain_text("1 hit")
        sidebar.stands("features", f"at sae.4{strongest}")
        expect(sidebar.row(strongest).locator(".djinn-Row-detail")).to_have_text(value)
    opened.run_cell(END)
    assert opened.errors() == []
