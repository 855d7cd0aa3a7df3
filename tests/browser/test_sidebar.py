"""The sidebar in JupyterLab and Notebook 7, as a person uses it: with the mouse, with keys alone, while a kernel is
busy, over a reload, after a kernel's restart and an engine's death."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, TimeoutError, expect

from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer, lab_server
from tests.browser.sidebar import ATTEMPT_MILLISECONDS, ATTEMPTS, Sidebar, no_complaints

LOAD = "%load_ext djinn_jupyter\n%djinn_load demo"
RUN = "%djinn_run --max-tokens 2 The capital of France is"
SAMPLES = "%djinn_run --samples 40 --temperature 1 --max-tokens 2 Once there was"
BUSY = """import djinn_jupyter as dj
from djinn_jupyter.link.naming import default_session_name
session, stop = dj.load("demo").session(default_session_name()), None
while not isinstance(stop, dj.Paused):
    stop = session.run("The capital of France is", max_new_tokens=900, ignore_eos=True)"""
RUN_NEXT = "() => { void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next') }"
CELLS = "count => window.jupyterapp.shell.currentWidget.content.widgets.length === count"
FOCUSED_ROLE = "() => document.activeElement?.getAttribute('role')"
# At most so many presses of Tab go once around the page.
TAB_STOPS = "() => document.querySelectorAll('a, button, input, select, jp-button, [tabindex=\"0\"]').length"


def drag_into_the_notebook(page: Page, label: Locator) -> None:
    """Drag a row until the notebook has one more cell: the row may move while the mouse goes down on it."""
    cells = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length")
    for _ in range(ATTEMPTS):
        label.hover()  # once it stands still
        page.mouse.down()
        page.mouse.move(*middle(page.locator(".jp-Notebook .jp-Cell").first), steps=12)
        page.mouse.up()
        with suppress(TimeoutError):
            page.wait_for_function(CELLS, arg=cells + 1, timeout=ATTEMPT_MILLISECONDS)
            return
    raise AssertionError(f"nothing was dropped in {ATTEMPTS} attempts")


def middle(place: Locator) -> tuple[float, float]:
    box = place.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


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
        sidebar.fold("Model")
        sidebar.fold("Memory")
        expect(sidebar.whole.locator(".djinn-Chart")).to_have_attribute(
            "aria-label", re.compile(r"^weights [\d.]+ MiB")
        )
        assert sidebar.defects() == []
        sidebar.whole.screenshot(path=artifacts / "sidebar-memory.png")
        page.keyboard.press("F10")
        sidebar.stands("stepped", "at resid_post.5")
        page.keyboard.press("F11")
        sidebar.stands("stepped", "at attn_in.6")
        sidebar.press("back")
        sidebar.stands("stepped", "at resid_post.5")
        on = sidebar.whole.get_by_label("Breakpoint at resid_post.4 is on")
        on.click()
        expect(on).not_to_be_checked()
        sidebar.whole.get_by_label("Move stepped out of the device").click()
        expect(sidebar.session("stepped")).to_contain_text("in host memory")
        page.keyboard.press("F8")
        sidebar.stands("stepped", "idle")
        sidebar.whole.get_by_label("Remove the breakpoint at resid_post.4").click()
        expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_count(0)
        drag_into_the_notebook(page, sidebar.session("stepped").locator(".djinn-Session-label"))
        assert any("%djinn_load demo\n%djinn_use" in cell["source"] for cell in lab_page.cells())
    assert lab_page.errors() == []


def test_a_run_is_paused_while_its_kernel_is_busy_and_outlives_a_restart_and_a_reload(
    lab: LabServer, page: Page
) -> None:
    notebook = write(lab, "occupied", BUSY)
    lab_page, sidebar = opened(page, lab.address(notebook))
    sidebar.fold("Activation")
    expect(sidebar.whole.locator("#djinn-activation")).to_be_hidden()
    page.evaluate(RUN_NEXT)
    sidebar.stands("occupied", "running")
    stopped = sidebar.session("occupied").locator(".djinn-dot.djinn-mod-paused")
    while not stopped.is_visible():  # between two runs of the cell there is nothing to pause
        with suppress(TimeoutError):
            sidebar.press("pause", timeout=5000)
    stop = sidebar.session("occupied").locator(".djinn-Session-state").inner_text()
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    lab_page.wait_for_kernel()
    sidebar.stands("occupied", stop)
    lab_page.command("docmanager:save")
    page.goto(lab.reloaded(notebook))
    page.locator(".djinn-Sidebar").wait_for(state="attached")
    if not sidebar.whole.is_visible():
        Sidebar.show(page)
    sidebar.stands("occupied", stop)
    expect(sidebar.whole.locator("#djinn-activation")).to_be_hidden()


def test_rows_are_folded_and_sessions_of_closed_notebooks_swept_with_undo(
    lab: LabServer, page: Page, artifacts: Path
) -> None:
    with no_complaints(page):
        lab_page, sidebar = opened(page, lab.address(write(lab, "finished", LOAD, SAMPLES)))
        page.evaluate(RUN_NEXT)
        page.evaluate(RUN_NEXT)
        rows = sidebar.whole.get_by_role("button", name="40 rows of finished, 40 idle")
        expect(rows).to_have_attribute("aria-expanded", "false")
        expect(sidebar.session("finished/0")).to_have_count(0)
        rows.click()
        expect(sidebar.session("finished/39")).to_be_visible()
        assert sidebar.defects() == []
        rows.click()
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        lab_page.command("docmanager:save")
        lab_page, sidebar = opened(page, lab.address(write(lab, "at_work", LOAD)))
        page.evaluate(RUN_NEXT)
        sidebar.stands("at_work", "idle")
        sweep = sidebar.whole.get_by_role("button", name="Close 41 sessions of closed notebooks")
        sweep.wait_for()
        expect(sidebar.session("finished")).to_contain_text("notebook closed")
        assert sidebar.defects() == []
        sidebar.whole.screenshot(path=artifacts / "sidebar-closed-light.png")
        lab_page.use_theme(DARK)
        sidebar.whole.screenshot(path=artifacts / "sidebar-closed-dark.png")
        lab_page.use_theme(LIGHT)
        sweep.click()
        undo = sidebar.whole.get_by_role("button", name="Undo")
        undo.wait_for()
        sidebar.whole.screenshot(path=artifacts / "sidebar-swept.png")
        expect(sidebar.session("finished")).to_have_count(0)
        undo.click()
        expect(sidebar.session("finished")).to_be_visible()
        sweep.click()
        expect(undo).to_have_count(0)
        expect(sweep).to_have_count(0)
        expect(sidebar.session("finished")).to_have_count(0)
        expect(sidebar.session("at_work")).to_be_visible()


def test_keys_alone_set_a_breakpoint(lab: LabServer, page: Page) -> None:
    _, sidebar = opened(page, lab.address(write(lab, "keys", LOAD)))
    page.evaluate(RUN_NEXT)
    sidebar.stands("keys", "idle")
    page.keyboard.press("Control+Shift+C")
    page.locator("#command-palette input").fill("Show the Djinn Sidebar")
    expect(page.locator("#command-palette .lm-mod-active")).to_contain_text("Show the Djinn Sidebar")
    page.keyboard.press("Enter")
    for _ in range(page.evaluate(TAB_STOPS)):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED_ROLE) == "treeitem":
            break
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowLeft", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_text(["attn_in.0"])
    page.keyboard.press("ArrowLeft")
    expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^Layer 0"))


def test_without_the_server_extension_it_says_how_to_enable_it(tmp_path: Path, page: Page) -> None:
    (tmp_path / "notebooks").mkdir()
    with lab_server(tmp_path / "notebooks", log=tmp_path / "lab.log", djinn=False) as bare:
        LabPage.open(page, bare.address(write(bare, "bare", "1")))
        sidebar = Sidebar.show(page)
        expect(sidebar.whole.get_by_role("status").first).to_contain_text("server extension enable djinn_jupyter")
        assert sidebar.move("resume").locator("button, jp-button").first.is_disabled()


def test_notebook_7_has_it_too(tmp_path: Path, page: Page, artifacts: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    with lab_server(tmp_path / "notebooks", log=tmp_path / "notebook.log", application="notebook") as server:
        notebook = write(server, "seven", LOAD)
        with no_complaints(page):
            _, sidebar = opened(page, server.in_notebook_7(notebook))
            page.evaluate(RUN_NEXT)
            sidebar.stands("seven", "idle")
            sidebar.row("Layer 2").click()
            expect(sidebar.whole.locator(".djinn-Breakpoint-site")).to_have_text(["resid_post.2"])
        page.screenshot(path=artifacts / "sidebar-notebook-7.png")
