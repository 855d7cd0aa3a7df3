"""The sidebar shows and moves the stop of the notebook in front: after another prompt, a step, a fork, a change of
tabs, a rename and a restart. One JupyterLab, one notebook beside a plain one."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

# With eager attention, so that the engine is this notebook's alone: the sessions of other tests' engines stand above.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --attention eager"
BREAK, FORK, END = "%djinn_break 4", "%djinn_fork a-parked-one", "%djinn_stop --forget --force"
FRANCE, ITALY = (f"%djinn_run --max-tokens 3 The capital of {country} is" for country in ("France", "Italy"))
RENAME = "async path => { await window.jupyterapp.shell.currentWidget.context.rename(path) }"
RESTART = "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.restartKernel() }"


def test_the_stop_that_is_shown_and_moved_is_the_notebooks(lab: LabServer, page: Page, artifacts: Path) -> None:
    write(lab, "plain.ipynb", "1")
    notebook = write(lab, "whose.ipynb", LOAD, BREAK, FRANCE, ITALY, FORK, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        lens = sidebar.whole.locator(".djinn-Lens")
        for source in (LOAD, BREAK, FRANCE):
            opened.run_cell(source)
        best = lens.locator("tr").first
        expect(best).to_contain_text("Paris")
        opened.run_cell(ITALY)
        expect(best).to_contain_text("Rome")
        page.screenshot(path=artifacts / "sidebar-900.png")
        sidebar.press("step-token")
        expect(sidebar.whole.locator(".djinn-Norms .djinn-token")).to_have_text(["\u00b7Rome"])

        opened.run_cell(FORK)
        sidebar.stands("a-parked-one", "at resid_post.4")
        opened.command("docmanager:open", {"path": "plain.ipynb"})
        expect(page.locator("body")).to_have_attribute("data-djinn-stopped", "false")
        opened.command("docmanager:open", {"path": "whose.ipynb"})
        expect(page.locator("body")).to_have_attribute("data-djinn-stopped", "true")
        expect(sidebar.whole.locator(".djinn-Stop-session")).to_have_text("whose")
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.5")
        sidebar.stands("a-parked-one", "at resid_post.4")
        for name in ("whose", "a-parked-one"):
            expect(sidebar.session(name)).to_be_in_viewport(ratio=1)
        expect(sidebar.session("whose").locator(".djinn-Session-actions")).to_be_in_viewport(ratio=1)
        page.screenshot(path=artifacts / "sidebar-900-two.png")

        page.evaluate(RENAME, "renamed.ipynb")
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.6")
        page.evaluate(RESTART)
        opened.wait_for_kernel()
        opened.run_cell(LOAD)
        sidebar.stands("renamed", "idle")
        expect(sidebar.whole.locator(".djinn-Session.djinn-mod-chosen .djinn-Session-label")).to_have_text("renamed")
        expect(sidebar.whole.get_by_text("This notebook was renamed")).to_be_visible()
        page.keyboard.press("F10")
        sidebar.stands("whose", "at resid_post.6")
    opened.run_cell(END)  # notebooks that are tested after it load an engine of this kind with settings of their own
    assert opened.errors() == []
