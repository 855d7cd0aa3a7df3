"""Charts in live cards: plotly draws in the place of a picture, and the file keeps the whole card without it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, HEIGHT, LIGHT, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.test_lab import write
from tests.widgets import cards

METRIC = "logit(' Paris') - logit(' Rome')"
CELLS = (
    "%load_ext djinn_jupyter\nfrom djinn_jupyter.widgets import views",
    "%djinn_load demo --stops-kept 17",
    "%djinn_run --max-tokens 1 --free The capital of France is",
    f'%djinn_sweep resid_post --over layer,position --edit zero --metric "{METRIC}" -o grid',
    "grid",
    "views.dose_response_view([-1, 0, 1], {'sad': [0.1, 0.2, 0.9]}, dose='dose', response='p', title='Mood')",
    "%djinn_stop --forget --force",
)
FIGURE = ".djinn .js-plotly-plot"
PICTURE = ".djinn div:has(> table .dj-cell), .djinn div:has(> img[src*=svg])"
CHART = "application/vnd.djinn.chart+json"
NARROW = 900


def test_plotly_draws_in_live_cards_and_the_file_has_them_whole(
    lab: LabServer, kernelless_lab: LabServer, page: Page, artifacts: Path
) -> None:
    opened = LabPage.open(page, lab.address(write(lab, "charts.ipynb", *CELLS)))
    opened.run_all()
    assert opened.errors() == []
    opened.show_everything()
    figures, pictures = opened.drawn(FIGURE), opened.drawn(PICTURE)
    expect(figures).to_have_count(3)
    expect(pictures).to_have_count(3)
    for at in range(3):
        expect(pictures.nth(at)).to_be_hidden()
    expect(opened.drawn(".djinn:has(.js-plotly-plot) summary")).to_have_count(3)
    figures.first.locator(".nsewdrag").hover()
    expect(figures.first.locator(".hoverlayer")).to_contain_text(re.compile(r"layer \d, position \d"))
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        opened.drawn(".djinn").nth(-2).screenshot(path=artifacts / f"chart-live-{theme.split()[1].lower()}.png")
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    expect(figures.last).to_be_visible()
    page.wait_for_function(_INSIDE)
    opened.save()
    for output in json.loads((lab.folder / "charts.ipynb").read_text())["cells"][3]["outputs"]:
        assert set(output["data"]) == {"text/plain", "text/html", CHART}
        assert "dj-cell" in "".join(output["data"]["text/html"])
    reader = LabPage.open(page, kernelless_lab.address("charts.ipynb"))
    reader.without_kernel()
    reader.show_everything()
    expect(reader.drawn(FIGURE)).to_have_count(3)
    page.route("**/extensions/jupyterlab-plotly/**", lambda route: route.abort())
    reader = LabPage.open(page, kernelless_lab.address("charts.ipynb"))
    reader.without_kernel()
    reader.show_everything()
    for at in range(3):
        expect(reader.drawn(PICTURE).nth(at)).to_be_visible()
    expect(reader.drawn(FIGURE)).to_have_count(0)


# No figure, and nothing in it, is wider than its card.
_INSIDE = """() => [...document.querySelectorAll('.djinn .js-plotly-plot')].every(figure =>
    [figure, ...figure.querySelectorAll('svg.main-svg')].every(one =>
        one.getBoundingClientRect().right <= figure.closest('.djinn').getBoundingClientRect().right))"""


@pytest.mark.parametrize("name", [name for name, card in cards.all_cards().items() if card.pictures is not None])
def test_a_card_has_a_picture_for_each_figure(page: Page, name: str) -> None:
    card = cards.all_cards()[name]
    page.set_content(f"<!doctype html>{card.html}")
    assert page.locator(card.pictures or "").count() == len(card.charted().panels)
