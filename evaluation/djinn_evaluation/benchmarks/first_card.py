"""The time from starting JupyterLab to the first stop card of the quickstart, by Run All, with no engine running: a
user's wait after `make lab`. Against a notebook of plain transformers that reads the same model and shows one hidden
state.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser

import djinn_jupyter
from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.intervals import ratios
from djinn_jupyter.api.loading import attach, engines
from tests.browser.chromium import chromium
from tests.browser.lab_page import HEIGHT, WIDTH, LabPage
from tests.browser.lab_server import lab_server

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
CARD_SHOWN, PLAIN_SHOWN = "Paused at", "<b>hidden state (1, 5, 128)"

# True where some output has these words. Cells out of sight are not in the page, so the notebook's model is read.
_SAID = """words => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .some(cell => (cell.outputs ?? []).some(output => JSON.stringify(output).includes(words)))"""
_RUN_ALL = "() => { void window.jupyterapp.commands.execute('notebook:run-all-cells') }"


def run(setting: Setting) -> Result:
    checks, first_words = Checks(), []
    folder = setting.home / "notebooks"
    folder.mkdir()
    _write(folder / "quickstart.ipynb", [c.source for c in nbformat.read(QUICKSTART, 4).cells if c.cell_type == "code"])
    _write(folder / "plain.ipynb", [PLAIN])
    with chromium() as browser:

        def quickstart() -> float:
            words, card = _seconds(browser, folder / "quickstart.ipynb", CARD_SHOWN, checks)
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
    sides = {name: Spread.of(values) for name, values in readings.items()}
    return (
        Figure(
            name="from starting JupyterLab to the first stop card of the quickstart, by Run All",
            unit="s",
            value=Spread.of(readings["quickstart"]),
            bar=at_most(CARD_SECONDS),
        ),
        Figure(
            name="the same, of the time to a hidden state in a notebook of plain transformers",
            unit="x",
            value=Spread.of(ratios(readings["quickstart"], readings["plain notebook"])),
            sides=sides,
            sides_unit="s",
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
