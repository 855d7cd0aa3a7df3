"""One notebook open in JupyterLab, as a test sees it: conditions to wait for, the notebook's model, the drawn outputs.

Cells out of sight are not in the page, so outputs are read from the model, and pictures are taken in a window as tall
as the notebook. Nothing here sleeps: every wait names the condition that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, TimeoutError

LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
WIDTH, HEIGHT, TALLEST, SLICE = 1360, 900, 15_000, 1400
RUN_MILLISECONDS = 240_000
CLICKS, ATTACH_MILLISECONDS = 9, 20_000

_ATTACHED = "() => window.jupyterapp.commands.isEnabled('debugger:continue')"
_PANEL = "window.jupyterapp.shell.currentWidget"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabPage:
    """The page, once its notebook is shown."""

    page: Page

    @staticmethod
    def open(page: Page, address: str) -> LabPage:
        page.goto(address)
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0")
        page.locator(".jp-Notebook").first.wait_for()
        return LabPage(page=page)

    def wait_for_kernel(self) -> None:
        self.page.wait_for_function(f"() => {_PANEL}.sessionContext.session?.kernel?.status === 'idle'")

    def without_kernel(self) -> None:
        """Answer JupyterLab's question for a kernel the way a reader does: none."""
        self.page.locator(".jp-Dialog").wait_for()
        self.page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")

    def run_all(self) -> None:
        """Run > Run All Cells, until the last cell has ended and the kernel is idle."""
        self.wait_for_kernel()
        self.page.set_default_timeout(RUN_MILLISECONDS)
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(f"() => {_PANEL}.sessionContext.session?.kernel?.status === 'idle'")

    def run_cell(self, source: str) -> None:
        """Run the cell with this source, and wait until it has ended and the next command may come. JupyterLab drops
        the command where the page has not reached the kernel yet."""
        self.page.wait_for_function(f"() => {_PANEL}.sessionContext.session?.kernel?.connectionStatus === 'connected'")
        index = next(i for i, cell in enumerate(self.cells()) if cell["source"] == source)
        self.page.evaluate(_RUN_CELL, index)

    def open_beside(self, notebook: str) -> None:
        """Open another notebook to the right of this one; from now on that one is in front."""
        self.command("docmanager:open", {"path": notebook, "options": {"mode": "split-right"}})
        self.page.wait_for_function(f"path => {_PANEL}.context?.path === path", arg=notebook)
        self.page.wait_for_function(f"() => {_PANEL}.content?.model?.cells?.length > 0")

    def restart_and_run_all(self) -> None:
        self.page.evaluate(f"async () => {{ await {_PANEL}.sessionContext.restartKernel() }}")
        self.run_all()

    def turn_debugger_on(self) -> None:
        """Click the bug icon until the debugger is attached.

        JupyterLab drops a click that falls into its own first look at a kernel, so we click again, as a reader would.
        """
        icon = self.drawn(".jp-DebuggerBugButton")
        for _ in range(CLICKS):
            if icon.get_attribute("aria-pressed") != "true":
                icon.click()
            try:
                self.page.wait_for_function(_ATTACHED, timeout=ATTACH_MILLISECONDS)
            except TimeoutError:
                continue
            self.drawn('.jp-DebuggerBugButton[aria-pressed="true"]').wait_for()
            return
        raise AssertionError(f"the debugger did not attach after {CLICKS} clicks")

    def save(self) -> None:
        self.command("docmanager:save")
        self.page.wait_for_function(f"() => !{_PANEL}.context.model.dirty")

    def use_theme(self, theme: str) -> None:
        self.command("apputils:change-theme", {"theme": theme})
        self.page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")  # drawn over the page while it changes

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        call = "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args) }"
        self.page.evaluate(call, [name, arguments or {}])

    def cells(self) -> list[dict[str, Any]]:
        """Return the notebook's cells, outputs included, whether they are drawn or not."""
        return self.page.evaluate(f"() => {_PANEL}.content.model.toJSON().cells")

    def outputs(self) -> list[dict[str, Any]]:
        return [output for cell in self.cells() for output in cell.get("outputs", [])]

    def errors(self) -> list[str]:
        return [f"{o['ename']}: {o['evalue']}" for o in self.outputs() if o["output_type"] == "error"]

    def drawn(self, selector: str) -> Locator:
        """Return the elements of the open notebook that `selector` matches."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").locator(selector)

    def show_everything(self) -> None:
        """Make the window as tall as the notebook, so that every cell is drawn."""
        if self.page.locator("#jp-left-stack:visible").count():
            self.command("application:toggle-left-area")
        self._resize(TALLEST)
        self._resize(self.page.evaluate(_BOTTOM) + 30)

    def _resize(self, height: float) -> None:
        self.page.set_viewport_size({"width": WIDTH, "height": int(min(max(height, HEIGHT), TALLEST))})
        self.page.wait_for_function(_NOTHING_MOVES)

    def screenshots(self, path: Path) -> list[Path]:
        """Take the notebook as it is drawn now, in pictures of at most a screen and a half: `path` with a number
        added."""
        path.parent.mkdir(parents=True, exist_ok=True)
        box = self.drawn(".jp-Notebook").first.bounding_box()
        assert box
        tops = range(0, int(box["height"]), SLICE)
        taken = [path.with_stem(f"{path.stem}-{number}") for number, _ in enumerate(tops, 1)]
        for picture, top in zip(taken, tops, strict=True):
            height = min(SLICE, box["height"] - top)
            clip = {"x": box["x"], "y": box["y"] + top, "width": box["width"], "height": height}
            self.page.screenshot(path=picture, clip=clip)
        return taken


# In one step: between two, JupyterLab may make another cell the active one.
_RUN_CELL = f"""async index => {{
    {_PANEL}.content.activeCellIndex = index;
    await window.jupyterapp.commands.execute('notebook:run-cell');
}}"""

# Where the last cell ends, from the top of the window.
_BOTTOM = f"() => {_PANEL}.content.widgets.at(-1).node.getBoundingClientRect().bottom"

# Scrolled to the top, every cell is there, and two frames of the browser pass without a change of height.
_NOTHING_MOVES = f"""async () => {{
    const cells = {_PANEL}.content.widgets;
    {_PANEL}.content.outerNode.scrollTop = 0;
    const bottom = () => cells.at(-1).node.getBoundingClientRect().bottom;
    const frame = () => new Promise(requestAnimationFrame);
    const before = bottom();
    await frame(); await frame();
    const drawn = cell => !cell.placeholder && cell.node.getBoundingClientRect().height > 0;
    return cells.every(drawn) && bottom() === before && {_PANEL}.content.outerNode.scrollTop === 0;
}}"""
