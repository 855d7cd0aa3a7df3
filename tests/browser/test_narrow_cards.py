"""Stop cards in a column as narrow as that of a notebook beside another: nothing is scrolled out of sight."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from djinn_jupyter.widgets import views
from tests.widgets import samples
from tests.widgets.trees import branches

SCROLLED = "() => [...document.querySelectorAll('.dj-scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
SEEN = """() => [...document.querySelectorAll('.dj-guess, .dj-tall img')].map(node => node.getBoundingClientRect())
    .every(box => box.width > 0 && box.right <= document.querySelector('.djinn').getBoundingClientRect().right)"""

ROWS = samples.lens_rows(tuple(range(5)), count=3)
# No two cells of a row overlap, to half a pixel.
APART = """() => [...document.querySelectorAll('tbody tr')].every(row => {
    const boxes = [...row.querySelectorAll('td:not(.dj-tall) > *')].map(node => node.getBoundingClientRect())
        .filter(box => box.width > 0);
    return boxes.every((box, i) => i === 0 || box.left >= boxes[i - 1].right - 0.5);
})"""
LONG = ("<|endoftext|>", " Italian", "interpretability")


def in_column(page: Page, width: int, html: str) -> None:
    page.set_content(f'<div style="width:{width}px">{html}</div>')


@pytest.mark.parametrize("width", [390, 510])
def test_three_long_guesses_of_long_tokens_are_in_sight_with_their_probabilities(page: Page, width: int) -> None:
    guesses = [[replace(top, text=text) for top, text in zip(row.top, LONG, strict=True)] for row in ROWS]
    rows = [replace(row, top=tuple(top)) for row, top in zip(ROWS, guesses, strict=True)]
    texts = ("The", *(" interpretability",) * 4)
    card = views.stop_view(replace(samples.paused(), texts=texts), value=samples.values(5, samples.WIDTH), lens=rows)
    in_column(page, width, card.html)
    assert page.evaluate(SCROLLED) == 0
    assert page.evaluate(SEEN)
    assert page.evaluate(APART)


def test_the_letters_of_a_chart_are_no_smaller_than_eight_pixels(page: Page) -> None:
    card = views.tree_view(branches())
    in_column(page, 390, card.html)
    assert page.locator(".dj-chart").evaluate("node => node.getBoundingClientRect().width") * 11 / 640 >= 8


def test_the_sessions_with_their_holders_are_in_sight_beside_another_notebook(page: Page) -> None:
    away = samples.session("work/quickstart.ipynb", state="idle", stopped_at=None, holder=None)
    here = samples.session("two.ipynb", state="paused", stopped_at="resid_post.2", step=0, host_bytes=141 * 2**10)
    in_column(page, 510, views.sessions_view([away, here], present="two.ipynb", mine={"two.ipynb"}).html)
    assert page.evaluate(SCROLLED) == 0


@pytest.mark.parametrize("width", [390, 510, 900])
def test_the_guesses_and_the_picture_of_a_stop_are_in_sight(page: Page, width: int) -> None:
    stop = samples.paused()
    lens = samples.lens_rows(tuple(range(5)), count=3)
    card = views.stop_view(stop, value=samples.values(5, samples.WIDTH), lens=lens)
    page.set_content(f'<div style="width:{width}px">{card.html}</div>')
    assert page.locator(".dj-guess").count() == 15
    assert page.evaluate(SCROLLED) == 0
    assert page.evaluate(SEEN)
