"""A picture's legend counts what lies across it, and says what it was read from and how it was pooled."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.pictures import signed
from djinn_jupyter.widgets.spelling import figure
from djinn_jupyter.widgets.stop import MOVED_ON, legend
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import StopIdentity
from tests.widgets import cards, samples
from tests.widgets.pooled import pooled


@pytest.mark.parametrize(("across", "said"), [(1, ">1 dimension<"), (2, ">2 dimensions<")])
def test_one_feature_is_one_dimension(across: int, said: str) -> None:
    values = np.ones((3, across), np.float32)
    assert said in str(legend(signed(values, 128), across))


def long_card(**changes: object) -> str:
    """The card of a stop of 300 positions."""
    texts = tuple(f" {number}" for number in range(300))
    stop = samples.paused(texts=texts)
    drawn = pooled(samples.values(300, samples.WIDTH), alone=range(290, 300), **changes)
    return views.stop_view(stop, pooled=drawn).html


def test_a_pooled_picture_says_what_it_was_read_from_and_what_a_pixel_is() -> None:
    html = long_card(lowest=-12.34, highest=23.45)
    assert "activation, positions 0-299 downwards" in html
    assert "256 dimensions; a pixel is the largest of 2 dimensions by 3 positions" in html
    assert "read from float32 [300, 256] between -12.3 and 23.4<" in html


def test_rounded_pixels_and_values_that_are_not_finite_are_said() -> None:
    drawn = pooled(samples.values(300, samples.WIDTH)).cells
    half = Array(dtype="bfloat16", shape=drawn.shape, data=bytes(len(drawn.data) // 2))
    html = long_card(cells=half, lowest=None, highest=None, not_finite=3)
    assert "read from float32 [300, 256], 3 not finite; pixels rounded to bfloat16<" in html


def test_a_short_pass_of_few_dimensions_has_a_pixel_for_each_number_and_says_no_more() -> None:
    html = views.stop_view(samples.paused(), pooled=pooled(samples.values(5, 100))).html
    assert "read from" not in html
    assert "a pixel is" not in html


def test_values_of_another_stop_are_not_drawn_on_this_one_s_card() -> None:
    html = long_card(stop=StopIdentity(session="work/paris.ipynb", number=1, edition=2))
    assert MOVED_ON in html
    assert "<img" not in html


def test_the_card_of_an_inspection_says_of_how_many_positions_its_rows_are_the_last() -> None:
    values = samples.values(300, samples.WIDTH)
    drawn = pooled(values)
    look = dataclasses.replace(
        cards.look("mlp_out.2", values[-16:]), positions=tuple(range(284, 300)), texts={}, pooled=drawn
    )
    view = views.snapshot_view(look)
    assert "the last 16 of 300 positions" in view.html
    assert f"read from float32 [300, 256] between {figure(drawn.lowest)} and {figure(drawn.highest)}" in view.html
    assert "mlp_out.2: float32 [300, 256] (T D), positions 0-299, exact" in view.plain
    assert view.html.count("<img") == 1
