"""The time until an open page has painted a kernel's output: scripts that run in the page and read its own clock.

Painted is: the frame after the one in which the output is in the page has been handed to the screen.
"""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Page

# Runs a cell and tells how long it took from the order, and from the arrival of its output, until it was painted.
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
    return [painted - begun, painted - arrived];
}"""

# Runs a cell that updates a display, each time with a larger number in it, and tells for each update how long it took
# from its arrival until it, or one that came after it in the same frame, was painted.
_UPDATED = """async index => {
    const panel = window.jupyterapp.shell.currentWidget;
    const kernel = panel.sessionContext.session.kernel;
    const node = panel.content.widgets[index].node;
    const took = [], seen = [];
    const hear = (_, {msg, direction}) => {
        if (direction !== 'recv' || msg.header.msg_type !== 'update_display_data') return;
        const numberOf = text => Number(/mark-(\\d+)/.exec(text)?.[1] ?? -1);
        const mark = numberOf(msg.content.data['text/html']);
        const arrived = performance.now();
        const look = () => {
            if (numberOf(node.textContent) < mark) return requestAnimationFrame(look);
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

# While a memory chart runs: for so many of its messages, how long it took from the arrival until it was drawn.
_DRAWN = """async count => {
    const panel = window.jupyterapp.shell.currentWidget;
    const kernel = panel.sessionContext.session.kernel;
    const canvas = document.querySelector('.djinn-memory canvas[data-draws]');
    const took = [];
    const hear = (_, {msg, direction}) => {
        if (direction !== 'recv' || msg.header.msg_type !== 'comm_msg' || !msg.content.data.state?.course) return;
        const arrived = performance.now(), before = canvas.dataset.draws;
        const look = () => {
            if (canvas.dataset.draws === before) return requestAnimationFrame(look);
            requestAnimationFrame(() => setTimeout(() => took.push(performance.now() - arrived)));
        };
        requestAnimationFrame(look);
    };
    kernel.anyMessage.connect(hear);
    while (took.length < count) await new Promise(requestAnimationFrame);
    kernel.anyMessage.disconnect(hear);
    return took.slice(0, count);
}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Painted:
    """Milliseconds until a cell's output was painted: from the order to run it, and from the output's arrival."""

    asked: float
    arrived: float


def painted(page: Page, cell: int, selector: str) -> Painted:
    """Run the cell; its output is there when `selector` matches in it."""
    asked, arrived = page.evaluate(_PAINTED, [cell, selector])
    return Painted(asked=asked, arrived=arrived)


def updated(page: Page, cell: int) -> list[float]:
    """Run a cell whose updates say `mark-0`, `mark-1`, ...; return the milliseconds of each."""
    return page.evaluate(_UPDATED, cell)


def drawn(page: Page, count: int) -> list[float]:
    """Return the milliseconds of so many messages of the memory chart that runs."""
    return page.evaluate(_DRAWN, count)


# Cells. An update comes every tenth of a second, more seldom than it is painted.
EVERY = """from time import sleep
handle = display(HTML('first'), display_id=True)
for n in range({count}):
    sleep(0.1)
"""


def updates_of_a_line(count: int) -> str:
    return EVERY.format(count=count) + "    handle.update(HTML(f'mark-{n}'))"


def updates_of_a_card(count: int) -> str:
    """Code of a cell that updates a card, each time with the stop read anew, as for a user who looks at one place."""
    return (
        "%djinn_use -o session\nfrom djinn_jupyter.api.stops import read_pooled\n"
        "from djinn_jupyter.widgets import views\n"
        + EVERY.format(count=count)
        + "    stop, lens = session.stop, session.lens(3)\n"
        "    card = views.stop_view(stop.reply, pooled=read_pooled(session), lens=lens.rows)\n"
        "    handle.update(HTML(card.html + f'mark-{n}'))"
    )
