"""plotly figures: values in, values out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from djinn_jupyter.widgets import figures, views
from djinn_jupyter.widgets.pictures import Attention, signed
from djinn_jupyter.widgets.view import PLOTLY
from tests.widgets import cards, samples


def test_values_go_in_and_come_out() -> None:
    values = np.array([[1.0, -2.0], [0.5, 0.0]], np.float32)
    heat = figures.activation(signed(values), ["0 a", "1 b"]).data[0]
    assert [list(row) for row in heat.z] == [[1.0, -2.0], [0.5, 0.0]]
    assert heat.zmin == -heat.zmax
    assert heat.colorscale[2] == (0.5, "#ffffff")
    assert list(heat.y) == ["0 a", "1 b"]
    bars = figures.top_tokens(samples.top(3)).data[0]
    assert list(bars.x) == [0.62, 0.217, 0.0759]
    assert list(bars.y) == ["\u00b7Paris", "\u00b7Lyon", "\u00b7the"]
    without, with_it = figures.effect(samples.effect()).data
    assert list(without.x) == list(with_it.x)
    assert without.y[-1] == 0.93
    assert with_it.y[-1] == 0.004
    figure = figures.dose_response([0, 1, 2], {"joy": [0, 0.5, 1], "grief": [1, 0.4, 0]}, dose="coef", response="share")
    assert [line.name for line in figure.data] == ["joy", "grief"]
    assert figure.layout.xaxis.title.text == "coef"
    assert list(figures.by_position([1.23456], [4]).data[0].y) == [1.23]


def test_attention_shows_one_head_says_which_and_offers_the_others() -> None:
    values = np.stack([np.eye(3), np.zeros((3, 3))], axis=1).astype(np.float32)
    drawn = figures.attention(Attention.of(values), [4, 5], ["a", "b", "c"], ["a", "b", "c"], site="pattern.2[4,5]")
    assert [heat.visible for heat in drawn.data] == [True, False]
    assert [heat.z[0][0] for heat in drawn.data] == [1.0, 0.0]
    assert (drawn.data[0].zmin, drawn.data[0].zmax) == (0, 1)
    assert drawn.layout.title.text == "pattern.2[4,5], head 4"
    chosen = drawn.layout.updatemenus[0].buttons[1]
    assert chosen.label == "head 5"
    assert chosen.args[0] == {"visible": [False, True]}
    assert chosen.args[1] == {"title.text": "pattern.2[4,5], head 5"}
    drawn = figures.attention(
        Attention.of(np.eye(3)[:, None]), [3], ["a", "b", "c"], ["a", "b", "c"], site="pattern.2[3]"
    )
    assert drawn.layout.title.text == "pattern.2[3]"
    assert not drawn.layout.updatemenus


ALL = [
    figures.activation(signed(samples.values(5, 256)), title="a"),
    figures.attention(
        Attention.of(cards.pattern()), range(samples.HEADS), list("abcde"), list("abcde"), site="pattern.2"
    ),
    figures.by_position([1, 2], [0, 1]),
    figures.top_tokens(samples.top()),
    figures.effect(samples.effect()),
    figures.dose_response([0, 1], {"x": [0, 1]}, dose="d", response="r"),
]


@pytest.mark.parametrize("figure", ALL)
def test_figures_suit_any_page_and_are_small(figure: object) -> None:
    layout = figure.layout
    assert all(axis.title.standoff > 0 for axis in (layout.xaxis, layout.yaxis))  # else a title lies on the labels
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.font.color == "rgb(128,128,128)"
    assert max(layout.margin.l, layout.margin.r, layout.margin.t, layout.margin.b) <= 60
    assert len(figure.to_json()) < 150_000


def test_a_view_with_hover_carries_plain_json_and_the_static_card() -> None:
    view = views.snapshot_view(cards.look("mlp_out.2", samples.values(5, 256)), hover=True)
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", PLOTLY}
    json.dumps(bundle)
    assert len(json.dumps(bundle[PLOTLY])) < 60_000
