"""A text in JupyterLab: predictions on hover, a click that stops at a token, the lens over all of it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 11"
RUN = "%djinn_run --max-tokens 24 --free The capital of France is"
TEXT = "%djinn_text"
LOGITS = "%djinn_text --metric \"logit(' Paris') - logit(' Rome')\""
LENS = '%djinn_lens --text --token " Paris"'
AGAIN = "%djinn_run The capital of Italy is"
END = "%djinn_stop --forget --force"


def test_a_click_on_a_token_stops_there(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "text.ipynb", LOAD, RUN, TEXT, LOGITS, LENS, AGAIN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD, RUN, TEXT, LOGITS, LENS):
            opened.run_cell(source)
        text = opened.drawn(".djinn").filter(has_text="coloured by probability").locator(".dj-tokens")
        token = text.locator("[data-djinn-at='3']")
        assert "predicted here:" in str(token.get_attribute("title"))
        assert token.evaluate("one => getComputedStyle(one).cursor") == "pointer"
        token.click()
        there = sidebar.whole.locator(".djinn-Breakpoints")
        expect(there).to_contain_text("when position == 3")
        page.wait_for_function("one => getComputedStyle(one).outlineStyle === 'solid'", arg=token.element_handle())
        opened.show_everything()
        page.screenshot(path=artifacts / "text.png")
        opened.use_theme(DARK)
        page.screenshot(path=artifacts / "text-dark.png")
        opened.run_cell(AGAIN)
        sidebar.stands("text", "at resid_post.7")
        token.click()
        expect(there).not_to_contain_text("position == 3")
        opened.run_cell(END)
