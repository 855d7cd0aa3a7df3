"""JupyterLab's own debugger on a stopped forward pass, in a real Chromium: call stack, variables, buttons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer

CELLS = (
    "%load_ext djinn_jupyter",
    "%djinn_load demo",
    "%djinn_debugger on",
    "%djinn_break 4",
    "%djinn_run --max-tokens 3 The capital of France is",
)


def write(lab: LabServer, name: str, sources: Sequence[str] = CELLS) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / name)
    return name


def top(page: Page) -> Locator:
    return page.locator(".jp-DebuggerCallstack-body li").first


def test_a_stopped_pass_in_jupyterlabs_debugger(lab: LabServer, page: Page, artifacts: Path) -> None:
    opened = LabPage.open(page, lab.address(write(lab, "panel.ipynb")))
    opened.wait_for_kernel()
    opened.command("debugger:show-panel")
    opened.run_all()
    assert opened.errors() == []
    top(page).get_by_text("resid_post.4, step 0").wait_for()
    frames = page.locator(".jp-DebuggerCallstack-body li").all_inner_texts()
    assert [frame.split("\n")[0].strip() for frame in frames[1:3]] == [
        "model.layers.4 (LlamaDecoderLayer)",
        "model (LlamaModel)",
    ]
    variables = page.locator(".jp-DebuggerVariables-body")
    variables.get_by_text("float32[5, 128]").first.wait_for()
    page.screenshot(path=artifacts / "debugger-panel.png")
    opened.command("debugger:next")
    top(page).get_by_text("resid_post.5, step 0").wait_for()
    opened.command("debugger:stepIn")
    top(page).get_by_text("attn_in.6, step 0").wait_for()
    opened.use_theme(DARK)
    page.screenshot(path=artifacts / "debugger-panel-dark.png")


def test_after_a_reload_the_panel_finds_the_stop_and_continue_goes_on(lab: LabServer, page: Page) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    opened = LabPage.open(page, lab.address(write(lab, "reloaded.ipynb")))
    opened.run_all()
    assert opened.errors() == []
    opened.save()
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0")
    opened.wait_for_kernel()
    opened.command("debugger:show-panel")
    top(page).get_by_text("resid_post.4, step 0").wait_for()
    opened.command("debugger:continue")
    top(page).get_by_text("resid_post.4, step 1").wait_for()


def test_an_engine_starts_while_the_bug_icon_is_on(lab: LabServer, page: Page) -> None:
    """The model is in bfloat16, so that none of the other tests' engines will do."""
    cells = (CELLS[0], "%djinn_load demo --dtype bfloat16", "%djinn_run --max-tokens 2 The capital of France is")
    opened = LabPage.open(page, lab.address(write(lab, "bug.ipynb", cells)))
    opened.wait_for_kernel()
    opened.turn_debugger_on()
    opened.run_all()
    assert opened.errors() == []
    assert "Paris" in str(opened.outputs()[-1])
    assert opened.drawn(".jp-DebuggerBugButton").get_attribute("aria-pressed") == "true"
