"""Stop cards in a column as narrow as that of a notebook beside another: nothing is scrolled out of sight."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from djinn_jupyter.widgets import views
from tests.widgets import samples

SCROLLED = "() => [...document.querySelectorAll('.dj-scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
SEEN = """() => [...document.querySelectorAll('.dj-guess, .dj-tall img')].map(node => node.getBoundingClientRect())
    .every(box => box.width > 0 && box.right <= document.querySelector('.djinn').getBoundingClientRect().right)"""


@pytest.mark.parametrize("width", [390, 510, 900])
def test_the_guesses_and_the_picture_of_a_stop_are_in_sight(page: Page, width: int) -> None:
    stop = samples.paused()
    lens = samples.lens_rows(tuple(range(5)), count=3)
    card = views.stop_view(stop, value=samples.values(5, samples.WIDTH), lens=lens)
    page.set_content(f'<div style="width:{width}px">{card.html}</div>')
    assert page.locator(".dj-guess").count() == 15
    assert page.evaluate(SCROLLED) == 0
    assert page.evaluate(SEEN)
