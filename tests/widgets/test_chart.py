"""Charts: the numbers go in and come out, in plotly's figures and in matplotlib's, and every text stays as it is."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.chart import Chart, picture_path
from djinn_jupyter.widgets.memory import trace_view
from djinn_jupyter.widgets.panels import SERIES, Arrow, Bars, Box, Heatmap, Lines, Network, Panel, cut, token_labels
from djinn_jupyter.widgets.view import PLOTLY
from tests.widgets import cards, samples

mpl.use("agg")
HOSTILE = ("$a$", "<b>", "<a href=javascript:alert(1)>", "</script>", "\u202eabc", "\U0001f600", "&lt;", "%{z}", "_x")
VALUES = np.array([[1.0, -2.0], [0.5, np.nan]])
FIELDS = {"%{x}", "%{y}", "%{z}", "%{text}", "%{hovertext}"}  # of our own templates
READ = ("text", "hovertext", "name", "hovertemplate", "x", "y", "label", "title.text")
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40), st.sampled_from(["y" * 10_000, "", " ", "\n"]))


def heatmap(text: str = "a", **settings: Any) -> Heatmap:
    return Heatmap(title=text, cells=VALUES, rows=[text, "x"], columns=[text, text], down=text, across=text,
                   measure=text, **settings)  # fmt: skip


def panels(text: str) -> list[Panel]:
    return [
        heatmap(text, words=[[text, text], [text, text]]),
        Lines(title=text, places=[0, 1], series={text: [1.0, np.nan], f"{text}2": [0, 1]}, across=text, measure=text),
        Bars(title=text, names=[text, text], series={text: [1, 2], f"{text}2": [0, 1]}, measure=text),
        Network(
            title=text,
            width=90,
            height=80,
            boxes=[Box(name=text, x=20, y=10, width=30, height=20)],
            edges=[Arrow(name=text, path="M20,30C20,40 20,50 60,60V70", score=-1.5, size=1.5)],
            what=text,
            kinds=[("error", text)],
        ),
    ]


@pytest.fixture(autouse=True)
def no_figure_stays() -> Any:
    yield
    pyplot.close("all")


KINDS = ("feature", "error", "embedding", "output", "group")
SIGNS = [(score, rises) for score in (1.0, -1.0) for rises in (False, True)]


def graph() -> Chart:
    """A graph with a box of each kind at one place, and an edge of each sign and direction."""
    return Chart(panels=[Network(
        title="a", width=90, height=80, kinds=[(kind, f"words of {kind}") for kind in KINDS], what="it", note="a note",
        boxes=[Box(name=kind, x=20, y=10, width=40, height=26, kind=kind) for kind in KINDS],
        edges=[Arrow(name="a", path="M20,30V70", score=score, size=1.0, rises=rises) for score, rises in SIGNS],
    )])  # fmt: skip


def test_boxes_and_edges_of_a_graph_differ_without_their_colours() -> None:
    shapes = [one.to_plotly_json() for one in graph().figure().layout.shapes]
    boxes = [one for one in shapes if "fillcolor" in one]
    assert len({(one["path"], one["line"]["width"], one["line"]["dash"]) for one in boxes[:5]}) == 5
    assert len({one["line"]["dash"] for one in shapes if "fillcolor" not in one}) == 4
    patches = graph().plot().patches
    drawn = [one for one in patches if isinstance(one, FancyBboxPatch)]
    outlines = {(str(vars(one.get_boxstyle())), one.get_linewidth(), one.get_linestyle()) for one in drawn[:5]}
    assert len(outlines) == 5
    assert len({one.get_linestyle() for one in patches if not isinstance(one, FancyBboxPatch)}) == 4


def test_a_legend_has_a_sample_of_each_kind_and_sign() -> None:
    words = ["it would rise", "it would fall", "it would rise, upwards", "it would fall, upwards"]
    words += [*(f"words of {kind}" for kind in KINDS), "a note"]
    figure, ax = graph().figure(), graph().plot()
    assert [one.text for one in figure.layout.annotations[5:]] == words
    assert [one.get_text() for one in ax.texts[-len(words) :]] == words
    low = [one.y for one in figure.layout.annotations[5:]]
    assert low == sorted(low)
    assert low[0] > 80
    assert low[-1] < figure.layout.yaxis.range[0] == ax.get_ylim()[0]
    assert len(figure.layout.shapes) == len(ax.patches) == 2 * (len(KINDS) + len(SIGNS))


def test_the_numbers_and_places_of_a_heatmap_come_out_of_both_libraries() -> None:
    made = heatmap("a", low=VALUES - 1, high=VALUES + 1)
    [heat] = Chart(panels=[made]).figure().data
    assert [list(row) for row in heat.z] == [[1.0, -2.0], [0.5, None]]
    assert (heat.zmin, heat.zmax) == (-2, 2)
    assert list(heat.customdata[0][1]) == [-3, -1]
    assert list(heat.x) == ["0 a", "1 a"]  # equal labels would be one place
    ax = Chart(panels=[made]).plot()
    drawn = ax.images[0].get_array()
    assert np.array_equal(drawn.filled(9), [[1.0, -2.0], [0.5, 9]])
    assert ax.images[0].get_clim() == (-2, 2)


def test_zero_is_clear_in_both_and_more_is_orange() -> None:
    scale = Chart(panels=[heatmap()]).figure().data[0].colorscale
    assert scale[0][1] == "rgba(46,122,214,1)"
    assert {colour.rsplit(",", 1)[1] for at, colour in scale if at == 0.5} == {"0)"}
    assert scale[-1][1] == "rgba(224,108,40,1)"
    colours = Chart(panels=[heatmap()]).plot().images[0].cmap
    assert [round(float(part) * 255) for part in colours(1.0)] == [224, 108, 40, 255]
    assert colours(0.5)[3] < 0.01


def test_lines_and_bars_have_their_numbers_gaps_and_intervals() -> None:
    lines = Lines(title="t", places=[0, 2], series={"_a": [1.0, np.nan], "b": [0, 3]}, low={"b": [-1, 2]},
                  high={"b": [1, 4]})  # fmt: skip
    first, band, second = Chart(panels=[lines]).figure().data
    assert (list(first.y), list(second.y)) == ([1.0, None], [0, 3])
    assert (list(band.x), list(band.y)) == ([0, 2, 2, 0], [1, 4, 2, -1])
    ax = Chart(panels=[lines]).plot()
    assert [list(line.get_ydata()) for line in ax.get_lines()][1] == [0, 3]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["_a", "b"]
    bars = Bars(title="t", names=["x", "y"], series={"without": [1, 2], "with": [3, 4]})
    assert [list(one.x) for one in Chart(panels=[bars]).figure().data] == [[1, 2], [3, 4]]
    assert [one.get_width() for one in Chart(panels=[bars]).plot().patches] == [1, 2, 3, 4]


def test_several_pictures_have_a_menu_in_one_library_and_axes_each_in_the_other() -> None:
    chart = Chart(panels=[replace(heatmap(), title="head 4"), replace(heatmap(), title="head 5")])
    figure = chart.figure()
    assert [heat.visible for heat in figure.data] == [True, False]
    chosen = figure.layout.updatemenus[0].buttons[1]
    assert chosen.args[0] == {"visible": [False, True]}
    assert chosen.args[1]["title"]["text"] == "head 5"
    assert chosen.args[1].keys() == {"title"}
    drawn = chart.plot()
    assert [ax.get_title(loc="left") for ax in drawn] == ["head 4", "head 5"]
    _, (one, other) = pyplot.subplots(1, 2)
    chart.plot([one, other])
    assert other.get_title(loc="left") == "head 5"
    with pytest.raises(UsageError, match=r"2 pictures \(head 4, head 5\), and 1 Axes"):
        chart.plot(one)


def test_sessions_with_one_label_have_a_line_each() -> None:
    reading = replace(samples.readings(1)[0], sessions=(("a/x.ipynb", 2**20), ("b/x.ipynb", 2**21)))
    trace: Any = SimpleNamespace(model="demo", readings=[reading], moves=[], error=None)
    [_, *lines] = trace_view(trace).charted().figure().data
    assert [(line.name, *line.y) for line in lines] == [("a/x", 1.0), ("b/x", 2.0)]


def test_the_legend_names_our_series_among_those_of_another() -> None:
    for panel in panels("a")[1:3]:
        _, ax = pyplot.subplots()
        ax.plot([0, 1], [5, 5], color="red")
        ax.bar([0], [1], color="red")
        Chart(panels=[panel]).plot(ax)
        shown = ax.get_legend().legend_handles
        inks = [one.get_color() if isinstance(panel, Lines) else one.get_facecolor() for one in shown]
        assert [mpl.colors.to_hex(ink) for ink in inks] == list(SERIES[:2])


def test_threads_that_draw_leave_the_settings_as_they_were(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(Chart(panels=[heatmap()] * (1 + n % 2)).save, tmp_path / f"{n}.svg") for n in range(12)]
        assert [one.result().name for one in made] == [f"{n}.svg" for n in range(12)]
    assert dict(mpl.rcParams) == before


def test_a_word_is_light_on_a_dark_cell_and_is_whole_under_the_pointer() -> None:
    made = replace(heatmap(signed=False), cells=np.array([[0.0, 1.0]]), words=[["<|endoftext|>", "of"]], rows=[0])
    dark, bright = Chart(panels=[made]).plot().texts
    assert (dark.get_color(), bright.get_color()) == ("white", "black")
    assert len(dark.get_text()) == 8
    [heat] = Chart(panels=[made]).figure().data
    assert unescape(heat.hovertext[0][0]) == "<|endoftext|>"
    assert "%{hovertext}" in heat.hovertemplate


@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_every_text_of_a_figure_is_literal(text: str) -> None:
    for panel in panels(text):
        figure = json.loads(Chart(panels=[panel]).figure().to_json())
        wanted = cut(text, 96) if len(text) > 96 else cut(text, 10_000)
        shown = figure["layout"].get("title", {}).get("text", "")
        assert unescape(shown) == (wanted if text else "")
        for said in _texts({"data": figure["data"], "layout": figure["layout"]}):
            left = said.replace("<extra></extra>", "").replace("<b>%{z}</b>", "").replace("<br>", "")
            assert not set("<>$") & set(left), said
            assert {*re.findall(r"%\{[^}]*\}", said)} <= FIELDS, said
            assert said.count("%{z}") <= 1, said


def _texts(value: Any, name: str = "") -> list[str]:
    """Every text of a figure that a reader sees."""
    if isinstance(value, str):
        return [value] if name in READ else []
    if isinstance(value, dict):
        return [said for key, one in value.items() for said in _texts(one, key)]
    return [said for one in value for said in _texts(one, name)] if isinstance(value, list) else []


@given(text=TEXTS)
@settings(max_examples=20, deadline=None)
def test_every_text_of_a_plot_is_literal(text: str) -> None:
    for panel in panels(text):
        ax = Chart(panels=[panel]).plot()
        ax.figure.canvas.draw()
        words = [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()]
        words += [] if ax.get_legend() is None else ax.get_legend().get_texts()
        texts = [*words, *ax.texts]
        assert ax.get_title(loc="left") == cut(text, 96)
        assert not any(one.get_parse_math() for one in texts if "$" in one.get_text())
        pyplot.close(ax.figure)


@pytest.mark.parametrize("ending", ["pdf", "svg", "png", "html"])
def test_a_written_figure_loads_nothing_and_is_the_same_again(tmp_path: Path, ending: str) -> None:
    for number, panel in enumerate(panels("$a$ <b> </script>")):
        chart = Chart(panels=[panel, panel])
        path = chart.save(tmp_path / f"{number}.{ending}")
        content = path.read_bytes()
        assert path.name == f"{number}.{ending}"
        assert {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG", "html": b"<html"}[ending] in content[:40]
        assert chart.save(path).read_bytes() == content
        if ending == "html":
            assert b'src="http' not in content
            assert b"plotly.js v" in content


@pytest.mark.parametrize("ending", ["pdf", "svg", "png", "html"])
def test_a_figure_replaces_a_figure_of_ours_and_no_other_file(tmp_path: Path, ending: str) -> None:
    path, foreign = tmp_path / f"a.{ending}", tmp_path / f"paper.{ending}"
    before = Chart(panels=[heatmap("a")]).save(path).read_bytes()
    assert Chart(panels=[heatmap("b")]).save(path).read_bytes() != before
    foreign.write_bytes(b"years of work")
    with pytest.raises(UsageError, match="There is another 'paper"):
        Chart(panels=[heatmap("a")]).save(foreign)
    assert foreign.read_bytes() == b"years of work"
    assert Chart(panels=[heatmap("a")]).save(foreign, replace=True).read_bytes() == before


def test_the_menu_brings_the_axes_and_shapes_of_each_picture() -> None:
    heat, _, _, graph = panels("a")
    figure = Chart(panels=[heat, graph]).figure()
    back, there = (button.args[1] for button in figure.layout.updatemenus[0].buttons)
    assert len(there["shapes"]) == 4  # an edge and a box, and a sample of each
    assert there["annotations"][0]["text"] == "a"
    assert not there["xaxis"]["visible"]
    assert back["shapes"] == back["annotations"] == []
    assert back["xaxis"]["type"] == "category"
    assert not figure.layout.shapes


def test_a_wrong_ending_and_a_missing_library_are_said_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"ends in \.pdf, \.svg, \.png, \.html; 'a\.jpg' does not"):
        picture_path(tmp_path / "a.jpg")
    with pytest.raises(UsageError, match=r"'\.pdf' does not"):
        picture_path(tmp_path / ".pdf")
    monkeypatch.setattr("djinn_jupyter.widgets.chart.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install matplotlib"):
        picture_path(tmp_path / "a.pdf")
    assert picture_path(str(tmp_path / "a.html")).name == "a.html"


def test_labels_have_the_position_and_the_token_with_its_space() -> None:
    assert token_labels([" is", "", "\n"], [3, 4, 5]) == ["3 \u00b7is", "4", "5 \u21b5"]
    assert len(cut("y" * 10_000)) == 24


@pytest.mark.parametrize("panel", panels("x"))
def test_figures_suit_any_page_and_are_small(panel: Panel) -> None:
    figure = Chart(panels=[panel]).figure()
    layout = figure.layout
    shown = [axis for axis in (layout.xaxis, layout.yaxis) if axis.visible is not False]
    assert len(shown) == (0 if isinstance(panel, Network) else 2)
    assert all(axis.title.standoff > 0 for axis in shown)  # else a title lies on the labels
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.font.color == "rgb(128,128,128)"
    assert max(layout.margin.l, layout.margin.r, layout.margin.t, layout.margin.b) <= 60
    assert len(figure.to_json()) < 20_000


def test_a_figure_is_plain_json_beside_its_card() -> None:
    view = views.snapshot_view(cards.look("mlp_out.2", samples.values(5, 256)))
    assert set(view._repr_mimebundle_()) == {"text/plain", "text/html"}
    bundle = view.figure()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", PLOTLY}
    assert len(json.dumps(bundle)) < 60_000


def test_on_colab_a_figure_is_html_too(monkeypatch: pytest.MonkeyPatch) -> None:
    view = cards.all_cards()["dose-response"]
    card = view._repr_mimebundle_()
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    bundle = view.figure()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", PLOTLY}
    assert "https://cdn.plot.ly/plotly-" in bundle["text/html"]
    assert view._repr_mimebundle_() == card


def test_a_card_without_numbers_over_axes_says_so() -> None:
    with pytest.raises(UsageError, match="no figure"):
        views.error_view(ValueError("x")).figure()
