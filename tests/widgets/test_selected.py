"""A card of one head or feature is of that alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from djinn_jupyter.widgets import views
from tests.widgets import cards, samples


@pytest.mark.parametrize(
    ("site", "axes", "inner", "said"), [("z.2[6]", "T H D", (1, 32), "6.3"), ("sae.4[436]", "T D", (1,), "436")]
)
def test_a_selected_head_or_feature_is_named_by_its_own_number(
    site: str, axes: str, inner: tuple[int, ...], said: str
) -> None:
    values = np.zeros((5, *inner), np.float32)
    values[4].flat[min(3, values[4].size - 1)] = -9
    text = views.snapshot_view(cards.look(site, values, axes)).plain
    assert f"largest at the last position: {said}: -9.00" in text


def test_a_stop_at_one_feature_shows_its_values_by_position() -> None:
    values = (0.0, -3.5, 0.0, 0.0, 109.3)
    stop = samples.paused("sae.4[436]", shape=(5, 1), norms=tuple(map(abs, values)), values=values)
    view = views.stop_view(stop)
    head, *rows = view.plain.splitlines()[-6:]
    assert head.split() == ["position", "token", "value"]
    assert [row.split()[-1] for row in rows] == ["0", "-3.50", "0", "0", "109"]
    assert ">-3.50<" in view.html
    assert ">norm<" not in view.html


def test_a_watch_of_one_feature_lists_its_values_with_their_sign() -> None:
    seen = [np.array([[0.5], [-2.0]], np.float32), np.array([[-1.5]], np.float32)]
    view = views.watch_view(samples.watch(site="sae.4[436]"), seen, [(0, 1), (2,)])
    assert view.plain.splitlines()[1].split() == ["pass", "position", "value"]
    assert view.plain.splitlines()[-1].split() == ["1", "2", "-1.50"]


def test_the_lens_of_a_feature_that_is_off_is_a_dash() -> None:
    on, off = samples.lens_rows((0, 1))
    view = views.lens_view("sae.4[436]", [on, msgspec.structs.replace(off, top=())])
    assert view.plain.splitlines()[-1].split()[-1] == "-"
    assert "<td>-</td>" in view.html
