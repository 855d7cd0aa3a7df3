"""Cards in JupyterLab in Chromium: the first one of the quickstart, and the time until a view is painted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Page

import djinn_jupyter
from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.harness import (
    Checks,
    Figure,
    Result,
    Setting,
    Spread,
    at_most,
    compared,
    differences,
    take_turns,
)
from djinn_jupyter.api.loading import attach, engines
from tests.browser import painting
from tests.browser.chromium import chromium
from tests.browser.lab_page import HEIGHT, WIDTH, LabPage
from tests.browser.lab_server import lab_server
from tests.browser.painting import Painted

ROUNDS = 3
CARD_SECONDS, WORDS_SECONDS = 15.0, 1.0
MODEL = Path(djinn_jupyter.__file__).parent / "demo" / "model"
QUICKSTART = CHECKOUT / "notebooks" / "01_quickstart.ipynb"
PLAIN = f"""import torch
from IPython.display import HTML
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype="auto").eval()
tokens = AutoTokenizer.from_pretrained({str(MODEL)!r})("The capital of France is", return_tensors="pt")
with torch.inference_mode():
    hidden = model(**tokens, output_hidden_states=True).hidden_states[5]
HTML(f"<b>hidden state {{tuple(hidden.shape)}}</b>")"""
CARD_SHOWN_OF_FIRST_CARD, PLAIN_SHOWN = "Paused at", "<b>hidden state (1, 5, 128)"

# True where some output has these words. Cells out of sight are not in the page, so the notebook's model is read.
_SAID = """words => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .some(cell => (cell.outputs ?? []).some(output => JSON.stringify(output).includes(words)))"""
_RUN_ALL = "() => { void window.jupyterapp.commands.execute('notebook:run-all-cells') }"


def run_first_card(setting: Setting) -> Result:
    """The time from starting JupyterLab to the first stop card of the quickstart, by Run All, with no engine running:
    a user's wait after `make lab`. Against a notebook of plain transformers that reads the same model and shows one
    hidden state."""
    checks, first_words = Checks(), []
    folder = setting.home / "notebooks"
    folder.mkdir()
    _write(folder / "quickstart.ipynb", [c.source for c in nbformat.read(QUICKSTART, 4).cells if c.cell_type == "code"])
    _write(folder / "plain.ipynb", [PLAIN])
    with chromium() as browser:

        def quickstart() -> float:
            words, card = _seconds(browser, folder / "quickstart.ipynb", CARD_SHOWN_OF_FIRST_CARD, checks)
            first_words.append(words)
            for entry in engines():
                attach(entry).stop(force=True, forget=True)
            return card

        def plain() -> float:
            return _seconds(browser, folder / "plain.ipynb", PLAIN_SHOWN, checks)[1]

        rounds = setting.rounds(ROUNDS)
        readings = take_turns({"quickstart": quickstart, "plain notebook": plain}, rounds=rounds)
    settings = {"rounds": rounds, "window": [WIDTH, HEIGHT]}
    figures = _figures(readings, first_words[-rounds:])
    return Result(benchmark="first_card", settings=settings, figures=figures, checks=checks.counts)


def _figures(readings: dict[str, list[float]], first_words: list[float]) -> tuple[Figure, ...]:
    return (
        Figure(
            name="from starting JupyterLab to the first stop card of the quickstart, by Run All",
            unit="s",
            value=Spread.of(readings["quickstart"]),
            bar=at_most(CARD_SECONDS),
        ),
        compared(
            "the same, of the time to a hidden state in a notebook of plain transformers",
            "quickstart",
            "plain notebook",
            readings,
            unit="s",
        ),
        Figure(
            name="from Run All to the first words about the start of the engine",
            unit="s",
            value=Spread.of(first_words),
            bar=at_most(WORDS_SECONDS),
        ),
    )


def _seconds(browser: Browser, notebook: Path, words: str, checks: Checks) -> tuple[float, float]:
    """Return the seconds from Run All to the first output, and from starting JupyterLab to the output with `words`."""
    begun = perf_counter()
    with lab_server(notebook.parent, log=notebook.parent.parent / "lab.log") as server:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(240_000)
        opened = LabPage.open(page, server.address(notebook.name))
        opened.wait_for_kernel()
        asked = perf_counter()
        page.evaluate(_RUN_ALL)
        page.wait_for_function(_SAID, arg="", polling=50)
        said = perf_counter() - asked
        page.wait_for_function(_SAID, arg=words, polling=50)
        shown = perf_counter() - begun
        checks.same("errors in the notebook", opened.errors(), [])
        opened.wait_for_kernel()
        page.close()
    return said, shown


def _write(path: Path, sources: list[str]) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(
        new_notebook(cells=[new_code_cell(source) for source in sources], metadata={"kernelspec": kernel}), path
    )


CARD_MILLISECONDS, UPDATE_MILLISECONDS = 300, 50
CARDS, UPDATES, DRAWN = 10, 40, 20
WARM_UP = 2
FIRST = (
    "%load_ext djinn_jupyter\nfrom IPython.display import HTML",
    "%djinn_load demo --fresh",
    "%djinn_break 4",
)
RUN, LINE = "%djinn_run The capital of France is", "display(HTML('<b class=\"bare\">bare</b>'))"
CARD_SHOWN_OF_PAINT, LINE_SHOWN = ".djinn [aria-hidden]", "b.bare"
CHART = ".djinn-memory canvas[data-draws]"


def run_paint(setting: Setting) -> Result:
    """The time until a browser has painted a view: a stop card, its update, the memory chart; in JupyterLab in
    Chromium.

    The clock is the page's own. A bare line of HTML in the same notebook gives the time of JupyterLab itself."""
    cards, updates, drawn = (setting.rounds(usual) for usual in (CARDS, UPDATES, DRAWN))
    turns = [RUN, LINE] * (WARM_UP + cards)
    last = [painting.updates_of_a_line(updates), painting.updates_of_a_card(updates), "%djinn_vram"]
    with _opened(setting.home, [*FIRST, *turns, *last]) as opened:
        page, checks = opened.page, Checks()
        for cell in FIRST:
            opened.run_cell(cell)
        begin = len(FIRST)
        readings = [
            painting.painted(page, begin + i, CARD_SHOWN_OF_PAINT if cell == RUN else LINE_SHOWN)
            for i, cell in enumerate(turns)
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
    _write(folder / "paint.ipynb", sources)
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
