"""The sidebar shows the rules and edits that influence a stop, and turns them off and on. The picture of a value with
heads shows the head that the user chooses, and the user goes back to a stop in the tree of stops."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import TIMEOUT, Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --attention eager --stops-kept 9"
CELLS = (
    LOAD,
    "%djinn_break z.4\n%djinn_steer 2 scale 2",
    "%djinn_run --max-tokens 3 The capital of France is",
    "%djinn_edit scale 0.5 --positions -1",
    "%djinn_edit zero --positions 0",
)
MEAN, HEAD = (re.compile(rf"^Values at z\.4 \({which}\)") for which in ("mean of 4 heads", "head 2"))
FORK, END = "%djinn_fork other", "%djinn_stop --forget --force"


def test_rules_edits_and_heads_of_a_stop(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "influenced.ipynb", *CELLS, FORK, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in CELLS:
            opened.run_cell(source)
        edits = sidebar.whole.get_by_label("Edits of this stop").get_by_role("checkbox")
        picture = sidebar.whole.locator(".djinn-Thumbnail canvas")
        expect(edits).to_have_count(2, timeout=TIMEOUT)
        expect(picture).to_have_attribute("aria-label", MEAN, timeout=TIMEOUT)
        page.screenshot(path=artifacts / "sidebar-influences.png")
        edits.nth(1).click()
        expect(sidebar.whole.get_by_label("Edits of this stop")).to_contain_text("off", timeout=TIMEOUT)
        sidebar.whole.locator(".djinn-Heads select").select_option("head 2")
        expect(picture).to_have_attribute("aria-label", HEAD)
        sidebar.whole.get_by_label("The rule at resid_post.2 is on").click()
        rules = sidebar.whole.get_by_label("Steering rules of influenced")
        expect(rules).to_contain_text("off", timeout=TIMEOUT)
        for title in ("Breakpoints", "Model", "Stops and forks"):
            sidebar.fold(title)
        sidebar.press("step")
        sidebar.stands("influenced", "at resid_post.4")
        opened.run_cell(FORK)
        sidebar.whole.get_by_label("Show session other").wait_for()
        sidebar.whole.get_by_label(re.compile("^z.4, prompt")).click()
        page.screenshot(path=artifacts / "sidebar-stops.png")
        sidebar.whole.get_by_role("button", name="Take influenced back").click()
        sidebar.stands("influenced", "at z.4")
        sidebar.stands("other", "at resid_post.4")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "sidebar-influences-dark.png")
        assert sidebar.defects() == []
    opened.run_cell(END)
    assert opened.errors() == []
