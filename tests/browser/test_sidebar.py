"""The sidebar in JupyterLab and Notebook 7, as a person uses it: with the mouse, with keys alone, while a kernel is
busy, over a reload, after a kernel's restart and an engine's death."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer, lab_server
from tests.browser.sidebar import Sidebar, no_complaints

LOAD = "%load_ext djinn_jupyter\n%djinn_load demo"
RUN = "%djinn_run --max-tokens 2 The capital of France is"
RUN_NEXT = "() => { void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next') }"
FOCUSED_ROLE = "() => document.activeElement?.getAttribute('role')"


def write(lab: LabServer, name: str, *sources: str) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / f"{name}.ipynb")
    return f"{name}.ipynb"


def opened(page: Page, address: str) -> tuple[LabPage, Sidebar]:
    lab_page = LabPage.open(page, address)
    lab_page.wait_for_kernel()
    return lab_page, Sidebar.show(page)


def test_a_session_is_seen_stopped_by_a_click_in_the_tree_and_stepped(
    lab: LabServer, page: Page, artifacts: Path
) -> None:
    with no_complaints(page):
        lab_page, sidebar = opened(page, lab.address(write(lab, "stepped", LOAD, RUN)))
        page.evaluate(RUN_NEXT)
        sidebar.stands("stepped", "idle")
        sidebar.row("Layer 4").click()
        expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_text(["resid_post.4"])
        page.evaluate(RUN_NEXT)
        sidebar.stands("stepped", "at resid_post.4")
        expect(sidebar.row("Layer 4")).to_have_attribute("aria-label", "Layer 4, breakpoint, stopped here")
        expect(sidebar.whole.locator(".djinn-Lens")).to_contain_text("Paris")
        assert sidebar.defects() == []
        sidebar.whole.screenshot(path=artifacts / "sidebar-light.png")
        page.screenshot(path=artifacts / "sidebar-in-lab-light.png")
        lab_page.use_theme(DARK)
        page.screenshot(path=artifacts / "sidebar-in-lab-dark.png")
        sidebar.whole.screenshot(path=artifacts / "sidebar-dark.png")
        lab_page.use_theme(LIGHT)
        page.keyboard.press("F10")
        sidebar.stands("stepped", "at resid_post.5")
        page.keyboard.press("F11")
        sidebar.stands("stepped", "at attn_in.6")
        sidebar.move("back").click()
        sidebar.stands("stepped", "at resid_post.5")
        on = sidebar.whole.get_by_label("Breakpoint at resid_post.4 is on")
        on.click()
        expect(on).not_to_be_checked()
        page.keyboard.press("F8")
        sidebar.stands("stepped", "idle")
        sidebar.whole.get_by_label("Remove the breakpoint at resid_post.4").click()
        expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_count(0)
    assert lab_page.errors() == []


def test_keys_alone_set_a_breakpoint(lab: LabServer, page: Page) -> None:
    _, sidebar = opened(page, lab.address(write(lab, "keys", LOAD)))
    page.evaluate(RUN_NEXT)
    sidebar.stands("keys", "idle")
    page.keyboard.press("Control+Shift+C")
    page.locator("#command-palette input").fill("Show the Djinn Sidebar")
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED_ROLE) == "treeitem":
            break
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_text(["attn_in.0"])
    page.keyboard.press("ArrowLeft")
    expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^Layer 0"))


def test_an_engine_that_dies_under_the_open_sidebar_is_said_to_have_ended(lab: LabServer, page: Page) -> None:
    _, sidebar = opened(page, lab.address(write(lab, "mortal", LOAD)))
    page.evaluate(RUN_NEXT)
    sidebar.stands("mortal", "idle")
    described = sidebar.whole.locator(".djinn-Engine-name").get_attribute("title") or ""
    process = re.search(r"Process (\d+)", described.replace(",", ""))
    assert process, described
    os.kill(int(process[1]), signal.SIGKILL)
    expect(sidebar.whole.get_by_role("alert").first).to_contain_text("ended")
    expect(sidebar.whole.locator(".djinn-Session")).to_have_count(0)


def test_without_the_server_extension_it_says_how_to_enable_it(tmp_path: Path, page: Page) -> None:
    (tmp_path / "notebooks").mkdir()
    with lab_server(tmp_path / "notebooks", log=tmp_path / "lab.log", djinn=False) as bare:
        LabPage.open(page, bare.address(write(bare, "bare", "1")))
        sidebar = Sidebar.show(page)
        expect(sidebar.whole.get_by_role("status").first).to_contain_text("server extension enable djinn_jupyter")
        assert sidebar.move("resume").locator("button, jp-button").first.is_disabled()
