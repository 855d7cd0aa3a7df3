"""Views while something runs: the memory chart on its canvas, frozen in its place; and how soon cards are painted."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.test_lab import write

CANVAS = ".djinn-memory canvas[data-draws]"
LOAD = "%load_ext djinn_jupyter\nimport djinn_jupyter as dj"
WORK = """
for name in ("paris", "rome", "oslo"):
    with_name = engine.session(name, fresh=True)
    _ = with_name.run("The capital of France is", max_new_tokens=60, ignore_eos=True)
    _ = with_name.swap_out()
_ = engine.session("rome").swap_in()
"""
CLOSE = "for name in ('paris', 'rome', 'oslo'):\n    _ = engine.session(name).close()"

# Runs a cell and tells how long it took from the order, and from the arrival of its output, until the card was painted.
_PAINTED = """async ([index, selector]) => {
    const panel = window.jupyterapp.shell.currentWidget;
    const kernel = panel.sessionContext.session.kernel;
    const node = panel.content.widgets[index].node;
    const frame = () => new Promise(requestAnimationFrame);
    let arrived = null;
    const hear = (_, {msg, direction}) => {
        if (direction === 'recv' && msg.header.msg_type === 'display_data') arrived ??= performance.now();
    };
    kernel.anyMessage.connect(hear);
    panel.content.activeCellIndex = index;
    const begun = performance.now();
    const done = window.jupyterapp.commands.execute('notebook:run-cell');
    while (arrived === null || !node.querySelector(selector)) await frame();
    await frame();
    await new Promise(after => setTimeout(after));
    const painted = performance.now();
    await done;
    kernel.anyMessage.disconnect(hear);
    return {asked: painted - begun, arrived: painted - arrived};
}"""

# Runs a cell that updates a display, each time with another number in it, and tells for each update how long it took
# from its arrival until it was painted.
_UPDATED = """async index => {
    const panel = window.jupyterapp.shell.currentWidget;
    const kernel = panel.sessionContext.session.kernel;
    const node = panel.content.widgets[index].node;
    const took = [], seen = [];
    const hear = (_, {msg, direction}) => {
        if (direction !== 'recv' || msg.header.msg_type !== 'update_display_data') return;
        const mark = /mark-\\d+/.exec(msg.content.data['text/html'])[0];
        const arrived = performance.now();
        const look = () => {
            if (!node.textContent.includes(mark)) return requestAnimationFrame(look);
            requestAnimationFrame(() => setTimeout(() => took.push(performance.now() - arrived)));
        };
        seen.push(mark);
        requestAnimationFrame(look);
    };
    kernel.anyMessage.connect(hear);
    panel.content.activeCellIndex = index;
    await window.jupyterapp.commands.execute('notebook:run-cell');
    while (took.length < seen.length) await new Promise(requestAnimationFrame);
    kernel.anyMessage.disconnect(hear);
    return took;
}"""


def pages_errors(page: Page) -> list[str]:
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def test_memory_is_drawn_live_and_frozen_by_its_button_in_light_and_dark(
    lab: LabServer, kernelless_lab: LabServer, page: Page, artifacts: Path
) -> None:
    errors = pages_errors(page)
    cells = [LOAD, "%djinn_load demo --fresh -o engine", "%djinn_vram -o trace", WORK]
    opened = LabPage.open(page, lab.address(write(lab, "vram.ipynb", *cells)))
    opened.run_all()
    assert opened.errors() == []
    opened.show_everything()
    canvas = opened.drawn(CANVAS)
    page.wait_for_function("selector => Number(document.querySelector(selector)?.dataset.draws) >= 8", arg=CANVAS)
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        page.wait_for_function("() => new Promise(after => requestAnimationFrame(() => after(true)))")
        opened.drawn(".djinn-memory").screenshot(path=artifacts / f"vram-live-{theme.split()[1].lower()}.png")
    assert "weights" in (canvas.get_attribute("aria-label") or "")
    opened.drawn(".djinn-memory button").click()
    frozen = opened.drawn(".djinn:has-text('Memory of demo')")
    frozen.wait_for()
    assert opened.drawn(CANVAS).count() == 0
    assert "moved" in frozen.text_content()
    for theme in (DARK, LIGHT):
        opened.use_theme(theme)
        frozen.screenshot(path=artifacts / f"vram-frozen-{theme.split()[1].lower()}.png")
    kept = [output for cell in opened.cells() for output in cell.get("outputs", []) if "data" in output]
    assert [sorted(output["data"]) for output in kept[-1:]] == [["text/html", "text/plain"]]
    opened.save()
    reader = LabPage.open(page, kernelless_lab.address("vram.ipynb"))
    reader.without_kernel()
    reader.show_everything()
    assert reader.drawn(".djinn:has-text('Memory of demo') svg").is_visible()
    assert errors == []


def test_a_stop_card_is_painted_at_once_and_an_update_in_a_few_frames(
    lab: LabServer, page: Page, artifacts: Path
) -> None:
    """Against a bare line of HTML in the same notebook; `paint.json` has the figures for the bars of the design."""
    update = "from time import sleep\nhandle = display(HTML('first'), display_id=True)\nfor n in range(12):\n"
    cells = [
        LOAD,
        "%djinn_load demo --fresh -o engine\n%djinn_break 4",
        *["%djinn_run The capital of France is"] * 5,
        *["from IPython.display import HTML\ndisplay(HTML('<b class=\"bare\">bare</b>'))"] * 5,
        update + "    sleep(0.1)\n    handle.update(HTML(f'mark-{n}'))",
        "%djinn_use -o session\nfrom djinn_jupyter.widgets import views\n"
        + update
        + "    sleep(0.1)\n    stop, lens = session.stop, session.lens(3)\n"
        "    card = views.stop_view(stop.reply, value=stop.hidden, lens=lens.rows)\n"
        "    handle.update(HTML(card.html + f'mark-{n}'))",
    ]
    opened = LabPage.open(page, lab.address(write(lab, "paint.ipynb", *cells)))
    opened.wait_for_kernel()
    for index in (0, 1):
        page.evaluate(
            "async index => { const panel = window.jupyterapp.shell.currentWidget; "
            "panel.content.activeCellIndex = index; await window.jupyterapp.commands.execute('notebook:run-cell') }",
            index,
        )
    cards = [page.evaluate(_PAINTED, [index, ".djinn .dj-dot.dj-paused"]) for index in range(2, 7)]
    bare = [page.evaluate(_PAINTED, [index, "b.bare"]) for index in range(7, 12)]
    plain, updates = (page.evaluate(_UPDATED, index) for index in (12, 13))
    assert len(plain) == len(updates) == 12
    measured = {
        "stop card, from Run to painted, ms": [round(c["asked"], 1) for c in cards],
        "stop card, from its arrival to painted, ms": [round(c["arrived"], 1) for c in cards],
        "bare line, from Run to painted, ms": [round(c["asked"], 1) for c in bare],
        "bare line, from its arrival to painted, ms": [round(c["arrived"], 1) for c in bare],
        "update of a stop card, ms": [round(ms, 1) for ms in updates],
        "update of a bare line, ms": [round(ms, 1) for ms in plain],
    }
    (artifacts / "paint.json").write_text(json.dumps(measured, indent=2))
    assert middle(c["arrived"] for c in cards) < 8 * middle(c["arrived"] for c in bare)
    assert middle(updates) < 8 * middle(plain)


def middle(times: Any) -> float:
    return statistics.median(times)
