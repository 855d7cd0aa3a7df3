"""Grids of cells: sweeps, heads, and what is selected of a site."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.heads.api import HeadPatterns, HeadScores
from djinn_jupyter.methods.heads.card import HEADS, LAYERS, patterns_view, scores_view
from djinn_jupyter.methods.sweep.api.grid import Grid, unfinished
from djinn_jupyter.methods.sweep.card import COLUMNS, PLAIN_COLUMNS, grid_view
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.pictures import ABOVE, BELOW
from tests.magics.methods import heads_read
from tests.widgets import cards, samples
from tests.widgets.static import faults_in
from tests.widgets.swept import swept, with_values


def test_every_cell_is_drawn_and_told() -> None:
    view = grid_view(Grid([swept(notes=("a note",))]))
    assert view.html.count('class="dj-cell"') == 40
    assert 'title="6.75"' in view.html
    assert "layer 7" in view.plain
    assert "4 ' is'" in view.plain
    for said in ("corrupted", "28 computed, 12 where the edit changes nothing", "2.1e-06", "a note"):
        assert said in view.html
        assert said in view.plain
    heads = grid_view(Grid([msgspec.structs.replace(swept(), over=("layer", "head"), texts=())]))
    assert "full colour at a change of 9.75" in heads.html
    assert heads.html.count('<th scope="col">head</th>') == 2  # of the picture and of the table
    assert re.search(r"^ *head +0 +1", heads.plain, re.MULTILINE)
    assert (heads.html.count("text-align:center"), heads.html.count('class="dj-key"')) == (5, 0)
    assert grid_view(Grid([swept()])).html.count('class="dj-key"') == 5  # words stand upright
    assert "blue below; nothing changes it" in grid_view(Grid([with_values(swept(), np.full((8, 5), -3.0))])).html
    alone = swept()
    measured = tuple(msgspec.structs.replace(one, clean=None) for one in alone.measured)
    view = grid_view(Grid([msgspec.structs.replace(alone, measured=measured)]))
    assert "the line's without the edit, blue below" in view.html
    assert "unedited" in view.plain
    assert "corrupted" not in view.html + view.plain
    view = grid_view(Grid([with_values(swept(), np.full((8, 5), -3.0))]))
    assert len(re.findall(r"background:#[0-9a-f]{6}00", view.html)) == 40


def test_a_position_has_its_token_where_all_pairs_have_the_same() -> None:
    one = swept()
    texts = (*one.texts[:3], " Italy", *one.texts[4:])
    other = msgspec.structs.replace(one, texts=texts)
    labels = grid_view(Grid([one, other], paired=True)).charted().panels[0].columns
    assert labels == ["0 The", "1 \u00b7capital", "2 \u00b7of", "3", "4 \u00b7is"]
    aligned = msgspec.structs.replace(one, texts=("So", *one.texts), places=(one.places[0], tuple(range(1, 6))))
    labels = grid_view(Grid([one, aligned], paired=True)).charted().panels[0].columns
    assert labels == ["0 The", "1 \u00b7capital", "2 \u00b7of", "3 \u00b7France", "4 \u00b7is"]


def test_five_pairs_have_their_intervals_in_the_figure() -> None:
    one = swept()
    pairs = Grid([with_values(one, np.full((8, 5), float(n))) for n in range(5)], paired=True)
    [panel] = grid_view(pairs).charted().panels
    found = pairs.statistics()
    assert np.array_equal(panel.low, found.low)
    assert np.array_equal(panel.high, found.high)
    assert np.allclose(panel.cells, found.change)
    [few] = grid_view(Grid(list(pairs.replies[:4]), paired=True)).charted().panels
    assert few.low is None


def test_pairs_are_drawn_as_their_mean() -> None:
    one = swept()
    other = with_values(one, np.full((8, 5), 5.0), corrupted=-1.0)
    view = grid_view(Grid([one, other], paired=True))
    assert 'title="5.88"' in view.html  # of 6.75 and 5
    assert "orange above -2.00" in view.html
    assert "largest mean changes over pairs" in view.html
    [strongest] = [line for line in view.plain.splitlines() if line.startswith("layer 7, position 4")]
    assert strongest.split()[4:] == ["7.88", "1.9", "-", "0.50", "2"]
    assert "no interval: it is drawn from 5 pairs or more" in view.plain
    assert "no interval: it is drawn from 5 pairs or more" in view.html
    assert "no interval" not in grid_view(Grid([one, *[other] * 4], paired=True)).plain


def test_cells_without_a_value_are_left_empty_and_the_others_have_their_colours() -> None:
    cells = {0: (-3.0,), 1: (1.5,), 2: (-4.0,)}
    asked = Sweep(session="s", corrupted=(0,), site="z", over=("layer", "position"), metrics=("logit(5)",))
    places = tuple(range(8)), tuple(range(5))
    grid = unfinished(places, cells, asked=asked, unedited=(-3.0,), note="It ended.")
    view = grid_view(grid)
    assert view.html.count("not computed") == 37
    shades = [bytes.fromhex(shade) for shade in re.findall(r"background:#([0-9a-f]{8})", view.html)]
    assert [round(shade[3] / 255, 2) for shade in shades] == [0, 0.9, 0.2]
    assert [tuple(shade[:3]) for shade in shades[1:]] == [ABOVE, BELOW]
    assert "It ended." in view.plain
    assert "3 of 40 finished" in view.plain
    assert "nan" not in view.html + view.plain


def test_three_axes_and_large_grids_stay_a_matrix_of_bounded_size() -> None:
    view = grid_view(Grid([swept(over=("layer", "position", "head"))]))
    assert "layer 0, position 4" in view.html
    wide = msgspec.structs.replace(swept(), places=(tuple(range(8)), tuple(range(200))), texts=("a",) * 200)
    wide = with_values(wide, np.zeros((8, 200)))
    view = grid_view(Grid([wide]))
    assert view.html.count('class="dj-cell"') == 8 * COLUMNS
    for text, drawn in ((view.html, COLUMNS), (view.plain, PLAIN_COLUMNS)):
        assert text.count(f"the first {drawn // 2} and the last {drawn // 2} of 200 columns") == 1
        assert len(re.findall(r"of \d+ columns", text)) == 1
    assert ">199" in view.html
    assert view.figure().made.data[0].z
    values = np.full((8, 200), -3.0)
    values[5, 100], values[6, 3], values[0, 0] = 2.0, -4.0, np.nan
    wide = msgspec.structs.replace(swept(), places=(tuple(range(8)), tuple(range(200))), texts=("a",) * 200)
    view = grid_view(Grid([with_values(wide, values)]))
    lines = view.plain.splitlines()
    at = lines.index("largest changes, of the cells that are not drawn too")
    assert [line.split() for line in lines[at + 2 : at + 4]] == [
        ["layer", "5,", "position", "100", "2.00", "5.00"],
        ["layer", "6,", "position", "3", "-4.00", "-1.00"],
    ]
    assert lines[at + 4].startswith("corrupted")
    assert "largest changes" in view.html
    assert "largest changes" not in grid_view(Grid([swept()])).html


def test_the_figure_under_the_pointer_has_every_metric() -> None:
    one = swept()
    second = msgspec.structs.replace(with_values(one, np.full((8, 5), -1.0)).measured[0], metric="prob(' b')")
    grid = Grid([msgspec.structs.replace(one, measured=(*one.measured, second))], several=True)
    figure = grid_view(grid).figure().made
    assert [bool(trace.visible) for trace in figure.data] == [True, False]
    assert np.array_equal(figure.data[1].z, np.full((8, 5), 2.0))  # from -3
    [menu] = figure.layout.updatemenus
    assert [button.label for button in menu.buttons] == [f"change of {metric}" for metric in grid.metrics]
    assert grid_view(grid.of(0)).figure().made.layout.updatemenus == ()


def test_heads_have_a_cell_or_a_picture_each_cut_where_they_are_many() -> None:
    view = scores_view(HeadScores(heads_read(patterns=False), "over 2 prompts"))
    assert view.html.count("title=") == 3 * 6
    assert 'title="1.2: none"' in view.html
    assert view.html.count('style="text-align:center;padding:0">2</th>') == 3
    assert "layers down, heads across" in view.html
    assert "Scores of 2 layers x 3 heads: over 2 prompts" in view.plain
    assert "induction        to what followed these (2 positions)" in view.plain
    assert "1.2 (1.0), 1.1 (0.94)" in view.plain
    view = patterns_view(HeadPatterns(heads_read(patterns=True), "on this line"), "notes.ipynb")
    assert view.html.count("<img") == 6
    assert 'alt="layer 1, head 2"' in view.html
    assert "session notes" in view.html
    assert "Patterns of 2 layers x 3 heads over 4 tokens" in view.plain
    read = heads_read(patterns=True, layers=LAYERS + 2, heads=HEADS + 1)
    patterns = patterns_view(HeadPatterns(read, "on this line"))
    assert patterns.html.count("<img") == LAYERS * HEADS
    for view in (patterns, scores_view(HeadScores(read, "over 2 prompts"))):
        for told in (view.plain, view.html):
            assert f"the first {HEADS} of {HEADS + 1} heads" in told
            assert f"the first {LAYERS // 2} and the last {LAYERS // 2} of {LAYERS + 2} layers" in told


def test_a_chosen_head_shows_where_each_token_looks() -> None:
    patterns = HeadPatterns(heads_read(patterns=True), "on this line").choose("1.2")
    view = patterns_view(patterns)
    strip = view.html[view.html.index('"dj-queries"') :]
    queries = re.findall(r'title="(position \d looks at [^"]*)"', strip)
    looks = ["", "0 \u00b7t0 100 %", "1 \u00b7t1 100 %", "2 \u00b7t2 100 %"]
    assert queries == [f"position {at} looks at {said}" for at, said in enumerate(looks)]
    seen = re.findall(r'<span class="dj-keys" hidden="">(.*?)</span>', strip)
    assert [one.count("<bdi ") for one in seen] == [1, 2, 3, 4]
    drawn = (("#440154;color:#fff", 0), ("#fde725;color:#000", 1), ("#440154;color:#fff", 2))
    assert seen[2] == "".join(f'<bdi style="background:{ink}">\u00b7t{at}</bdi>' for ink, at in drawn)
    assert "head 1.2: the last position looks at 2 \u00b7t2 100 %" in view.plain
    sides = re.findall(r'<code style="[^"]*writing-mode:([\w-]+)" aria-hidden="true">(.*?)</code>', view.html)
    tokens = "".join(f"<span>\u00b7t{at}</span>" for at in range(4))
    assert sides == [("horizontal-tb", tokens), ("vertical-lr", tokens)]
    assert faults_in(view.html) == []
    long = HeadPatterns(heads_read(patterns=True, length=60), "on this line").choose("0.0", "1.1")
    assert "the last 48 of 60 tokens" in patterns_view(long).html
    assert len(patterns_view(long).html) < 250_000
    assert "writing-mode" not in patterns_view(long).html
    read = msgspec.structs.replace(heads_read(patterns=True, length=60), pooled=2)
    assert "no single tokens" in patterns_view(HeadPatterns(read, "on this line").choose("0.0")).html
    for head, said in (("x", "spelled by its layer"), ("5.0", "no head 5.0: layers 0-1"), ("1.7", "of 3 heads each")):
        with pytest.raises(UsageError, match=said):
            patterns.choose(head)


def test_a_selected_head_or_feature_is_named_and_has_its_values_with_their_sign() -> None:
    for site, axes, inner, said in [("z.2[6]", "T H D", (1, 32), "6.3"), ("sae.4[436]", "T D", (1,), "436")]:
        values = np.zeros((5, *inner), np.float32)
        values[4].flat[min(3, values[4].size - 1)] = -9
        text = views.snapshot_view(cards.look(site, values, axes)).plain
        assert f"largest at the last position: {said}: -9.00" in text
    values = (0.0, -3.5, 0.0, 0.0, 109.3)
    stop = samples.paused("sae.4[436]", shape=(5, 1), norms=tuple(map(abs, values)), values=values)
    view = views.stop_view(stop)
    head, *rows = view.plain.splitlines()[-6:]
    assert head.split() == ["position", "token", "value"]
    assert [row.split()[-1] for row in rows] == ["0", "-3.50", "0", "0", "109"]
    assert ">-3.50<" in view.html
    assert ">norm<" not in view.html
    seen = [np.array([[0.5], [-2.0]], np.float32), np.array([[-1.5]], np.float32)]
    view = views.watch_view(samples.watch(site="sae.4[436]"), seen, [(0, 1), (2,)])
    assert view.plain.splitlines()[1].split() == ["pass", "position", "value"]
    assert view.plain.splitlines()[-1].split() == ["1", "2", "-1.50"]
    on, off = samples.lens_rows((0, 1))
    view = views.lens_view("sae.4[436]", [on, msgspec.structs.replace(off, top=())])
    assert view.plain.splitlines()[-1].split()[-1] == "-"
    assert "<td>-</td>" in view.html
