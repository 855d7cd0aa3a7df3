"""The time until a browser has painted a view: a stop card, its update, the memory chart; in JupyterLab in Chromium.

The clock is the page's own. A bare line of HTML in the same notebook gives the time of JupyterLab itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page

from djinn_evaluation.benchmarks.measuring import Spread, differences
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_jupyter.api.loading import attach, engines
from tests.browser import painting
from tests.browser.chromium import chromium
from tests.browser.lab_page import HEIGHT, WIDTH, LabPage
from tests.browser.lab_server import lab_server
from tests.browser.painting import Painted

CARD_MILLISECONDS, UPDATE_MILLISECONDS = 300, 50
CARDS, UPDATES, DRAWN = 10, 40, 20
WARM_UP = 2
FIRST = (
    "%load_ext djinn_jupyter\nfrom IPython.display import HTML",
    "%djinn_load demo --fresh",
    "%djinn_break 4",
)
RUN, LINE = "%djinn_run The capital of France is", "display(HTML('<b class=\"bare\">bare</b>'))"
CARD_SHOWN, LINE_SHOWN = ".djinn .dj-dot.dj-paused", "b.bare"
CHART = ".djinn-memory canvas[data-draws]"


def run(setting: Setting) -> Result:
    cards, updates, drawn = (setting.rounds(usual) for usual in (CARDS, UPDATES, DRAWN))
    turns = [RUN, LINE] * (WARM_UP + cards)
    last = [painting.updates_of_a_line(updates), painting.updates_of_a_card(updates), "%djinn_vram"]
    with _opened(setting.home, [*FIRST, *turns, *last]) as opened:
        page, checks = opened.page, Checks()
        for cell in FIRST:
            opened.run_cell(cell)
        begin = len(FIRST)
        readings = [
            painting.painted(page, begin + i, CARD_SHOWN if cell == RUN else LINE_SHOWN) for i, cell in enumerate(turns)
        ]
        of_cards, of_lines = readings[2 * WARM_UP :: 2], readings[2 * WARM_UP + 1 :: 2]
        lines = painting.updated(page, begin + len(turns))
        updated = painting.updated(page, begin + len(turns) + 1)
        checks.same("updates that were painted", (len(lines), len(updated)), (updates, updates))
        opened.run_cell("%djinn_vram")
        page.locator(CHART).wait_for()
        charts = painting.drawn(page, drawn)
        checks.same("errors in the notebook", opened.errors(), [])
    figures = (
        *_first_paints(of_cards, of_lines),
        _update("update of a stop card, from its arrival to painted", updated, lines),
        _update("update of the memory chart, from its arrival to drawn", charts, None),
    )
    settings = {"cards": cards, "updates": updates, "window": [WIDTH, HEIGHT], "views in the notebook": WARM_UP + cards}
    return Result(benchmark="paint", settings=settings, figures=figures, checks=checks.counts)


def _first_paints(cards: list[Painted], lines: list[Painted]) -> tuple[Figure, Figure]:
    asked, arrived = [c.asked for c in cards], [c.arrived for c in cards]
    more = differences(asked, [line.asked for line in lines])
    return (
        Figure(
            name="stop card, from Run to painted",
            unit="ms",
            value=Spread.of(asked),
            bar=at_most(CARD_MILLISECONDS),
            sides={"a bare line": Spread.of(line.asked for line in lines), "more than the line": Spread.of(more)},
            sides_unit="ms",
        ),
        Figure(
            name="stop card, from its arrival to painted",
            unit="ms",
            value=Spread.of(arrived),
            sides={"a bare line": Spread.of(line.arrived for line in lines)},
            sides_unit="ms",
        ),
    )


def _update(name: str, took: list[float], lines: list[float] | None) -> Figure:
    sides = {} if lines is None else {"a bare line": Spread.of(lines)}
    unit = None if lines is None else "ms"
    return Figure(
        name=name, unit="ms", value=Spread.of(took), bar=at_most(UPDATE_MILLISECONDS), sides=sides, sides_unit=unit
    )


@contextmanager
def _opened(home: Path, sources: list[str]) -> Iterator[LabPage]:
    """Yield a notebook of these cells in a JupyterLab of its own; the engine that it starts is stopped with it."""
    folder = home / "notebooks"
    folder.mkdir()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "paint.ipynb")
    with lab_server(folder, log=home / "lab.log") as server, chromium() as browser:
        page: Page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(120_000)
        opened = LabPage.open(page, server.address("paint.ipynb"))
        opened.wait_for_kernel()
        try:
            yield opened
        finally:
            for entry in engines():
                attach(entry).stop(force=True)
