"""The content of each view."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.api.tables import shortened
from djinn_jupyter.widgets import pictures, views
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.diff import differing
from djinn_jupyter.widgets.memory import transfer_line
from djinn_jupyter.widgets.panels import Heatmap
from djinn_jupyter.widgets.view import CHART, LARGEST, PLOTLY
from djinn_jupyter.wire.nouns import StopDescription, Transfer
from djinn_jupyter.wire.readings import ReadPooled
from djinn_jupyter.wire.texts import unshown
from tests.widgets import cards, compared, samples
from tests.widgets.pooled import heads_of, pooled

CARDS = cards.all_cards()


def test_a_stop_says_where_it_stands_why_and_with_which_values() -> None:
    first = CARDS["stop"].plain.splitlines()[0]
    assert first == "paused at resid_post.4 (step 0, the prompt; 5 of 8 layers run; breakpoint 1, hit 1; session paris)"
    last = CARDS["stop"].plain.splitlines()[-1]
    assert last == "4         ' is'       16.4  ' Rome' 70 %, '\\n' 24 %, ' <b>' 8.6 %"
    text = CARDS["stop, one position"].plain
    assert text.startswith("paused at resid_post.4 (step 2; 5 of 8 layers run; after a step; session paris)")
    assert "text so far: ' Paris.'" in text
    shown = [line.split()[0] for line in CARDS["stop, long"].plain.splitlines()[3:13]]
    assert shown == ["3", *(str(p) for p in range(51, 60))]
    assert CARDS["stop, long"].html.count("<img") == 2  # the whole pass, and the rows beside the table
    assert "<img" not in CARDS["stop, nothing fetched"].html
    assert "lens" not in CARDS["stop, nothing fetched"].html
    text = CARDS["stop, edited"].plain
    assert "edited: scale by 0.9 at position 4" in text
    assert "top token changed from ' Paris' to ' Lyon', KL 1.234 nats" in text
    for reason, words in [
        ("interrupt", "interrupted"),
        ("back", "gone back"),
        ("fork", "forked here"),
        ("step", "after a step"),
    ]:
        stop = samples.paused(reason=reason, breakpoint=None)
        assert words in views.stop_view(stop).plain


@pytest.mark.parametrize(
    ("site", "layer", "cells"),
    [
        ("resid_pre.0", 0, "|........"),
        ("resid_post.4", 5, "#####|..."),
        ("z.4", 4, "####+|-..."),
        ("resid_post.7", 8, "########|"),
    ],
)
def test_the_strip_of_layers_marks_where_the_pass_stands(site: str, layer: int, cells: str) -> None:
    html = views.stop_view(samples.paused(site, layer=layer)).html
    strip = html[html.index('role="img"') :]
    columns = re.search(r"grid:12px/auto (.*?) auto", strip)[1]
    widths = [width for count, width in re.findall(r"repeat\((\d+),(.*?)\)", columns) for _ in range(int(count))]
    drawn = re.findall(r"<[sb] [^>]*>", strip.partition("</div>")[0])
    marks = {"1fr": "#.", ".5fr": "+-", "3px": "||"}
    assert "".join(marks[width]["#8884" in one] for width, one in zip(widths, drawn, strict=True)) == cells
    assert [one.startswith("<b") for one in drawn] == [width == "3px" for width in widths]


def test_a_dose_response_reads_as_a_table_as_a_chart_and_under_the_pointer() -> None:
    shown = CARDS["dose-response"]
    assert shown.plain.splitlines()[1:3] == ["coefficient  sad <b>  happy", "-1           0.10     0.80"]
    assert shown.html.count("%3Cpolyline") == 2
    assert "<div><small>probability<" in shown.html
    assert "sad &lt;b&gt;" in shown.html
    asked = views.dose_response_view([0, 1], {"sad": [0.1, 0.9]}, dose="x", response="y", title="")
    assert [line.name for line in asked.figure().made.data] == ["sad"]
    assert set(asked._repr_mimebundle_()) == {"text/plain", "text/html", PLOTLY}
    series = {"gap": [1.0, float("nan"), 2.0, 3.0], "none": [float("inf")] * 4}
    shown = views.dose_response_view([0, 1, 2, 3], series, dose="x", response="y", title="")
    assert shown.html.count("%3Cpolyline") == 2
    assert shown.html.count("%3Ccircle") == 3
    assert [line.split() for line in shown.plain.splitlines()[2:4]] == [["0", "1.0", "inf"], ["1", "nan", "inf"]]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/a.ipynb")
    monkeypatch.delenv("DJINN_STATIC")


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize("name", ["watch", "snapshot", "circuits", "dose-response"])
def test_a_live_notebook_has_the_figures_of_a_card_beside_all_of_its_html(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = CARDS[name]._repr_mimebundle_()
    [figure] = bundle.pop(CHART)["figures"]
    assert figure["data"][0]["type"] == json.loads(CARDS[name].figure().made.to_json())["data"][0]["type"]
    assert figure["layout"]["title"]["text"] == ""  # the card has it
    monkeypatch.setenv("DJINN_STATIC", "1")
    assert CARDS[name]._repr_mimebundle_() == bundle
    assert bundle["text/html"] == CARDS[name].html
    monkeypatch.delenv("DJINN_STATIC")
    monkeypatch.delenv("JPY_SESSION_NAME")  # as in VS Code
    assert CHART not in CARDS[name]._repr_mimebundle_()


@pytest.mark.usefixtures("live")
def test_figures_too_large_for_a_notebook_stay_out_of_it() -> None:
    def card(side: int) -> dict[str, Any]:
        cells = np.random.default_rng(0).standard_normal((side, side))
        panel = Heatmap(title="", cells=cells, rows=range(side), columns=range(side))
        return dataclasses.replace(CARDS["snapshot"], chart=lambda: Chart(panels=[panel]))._repr_mimebundle_()

    assert 100_000 < len(json.dumps(card(128)[CHART])) < LARGEST
    assert set(card(240)) == {"text/plain", "text/html"}


@pytest.mark.parametrize(
    ("values", "labels", "axis"),
    [
        ([14.0, 2.0], ["14.0", "0"], 53),
        ([0.00036, 0.0], ["0.000360", "0"], 104),
        ([5.0, -5.0], ["5.00", "0", "-5.00"], 61),
        ([20.0, -0.1], ["20.0", "-0.100"], 73),
        ([0.1, -20.0], ["0.100", "-20.0"], 66),
        ([-1.0, -20.0], ["0", "-20.0"], 61),
    ],
)
def test_the_axis_of_a_dose_response_has_room_for_its_labels(values: list[float], labels: list[str], axis: int) -> None:
    shown = views.dose_response_view([0, 1], {"one": values}, dose="x", response="y", title="")
    drawn = unquote(shown.html)
    assert re.findall(r'text-anchor="end"[^>]*>([^<]*)<', drawn) == labels
    assert f"M{axis},12V" in drawn


def test_a_line_is_drawn_by_three_digits_of_its_values() -> None:
    shown = views.dose_response_view([0, 1, 2], {"one": [13.7, 14.2, 13.8]}, dose="x", response="y", title="")
    (path,) = re.findall(r'points="([^"]*)"', unquote(shown.html))
    heights = [int(point.split(",")[1]) for point in path.split()]
    drawn = [(220 - 43 - height) / (220 - 43 - 12) * 14.2 for height in heights]  # 12 pixels above it, 43 below
    assert drawn == pytest.approx([13.7, 14.2, 13.8], abs=14.2 / (220 - 43 - 12) / 2)


def test_a_result_has_prompt_new_text_reason_and_what_its_last_token_was_chosen_from() -> None:
    lines = CARDS["result"].plain.splitlines()
    assert lines[0] == "finished: 3 new tokens, ended by the asked number of tokens (session paris)"
    assert lines[1] == "The capital of France is| Paris. The"
    assert lines[2].startswith("last new token: ' Paris' 62 %, ' Lyon' 22 %")
    assert "the last new token" in CARDS["result"].html
    none = views.result_view(samples.finished(tokens=(), texts=(), text=""))
    assert "next token: ' Paris' 62 %" in none.plain
    assert "the next token" in none.html
    assert "24 layers in 3 passes" in CARDS["result"].html
    ignored = ("do_sample=False", "max_new_tokens=80", "temperature=0.6")
    said = views.result_view(samples.finished(ignored_defaults=ignored)).plain
    assert said.endswith("generation defaults of the model not applied: temperature=0.6")
    for nothing in ((), ignored[:2]):
        assert "not applied" not in views.result_view(samples.finished(ignored_defaults=nothing)).html


def test_a_rule_says_how_often_and_how_much() -> None:
    assert (
        CARDS["rules"].plain == "rule 1, add [256] x 4 at resid_post.4: changed 3 of 3 passes, mean relative size 0.299"
    )
    idle = views.rules_view([samples.rule(passes_changed=0, mean_relative_size=None)])
    assert idle.plain == "rule 1, add [256] x 4 at resid_post.4: changed 0 of 3 passes"
    from_zero = views.rules_view([samples.rule(mean_relative_size=math.inf)])
    assert from_zero.plain == "rule 1, add [256] x 4 at resid_post.4: changed 3 of 3 passes, of a value that was zero"


def test_an_effect_has_probabilities_and_logits_of_the_tokens_of_both_heads() -> None:
    rows = [line.split("  ") for line in CARDS["edit"].plain.splitlines()]
    found = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert found["' Paris'"] == ["93 %", "0.4 %", "-0.07", "-5.52", "-5.45"]
    assert found["'\\n'"] == ["0.4 %", "0.8 %", "-5.52", "-4.87", "+0.65"]
    assert ">-5.45<" in CARDS["edit"].html
    under = CARDS["edit under a rule"]
    assert "logit difference \u00b7<b> \u2212 \u00b7Lyon: 0.00 without, 0.00 with, 0.00" in under.plain
    assert "logit difference" in under.html
    assert CARDS["edit of nothing"].plain.startswith("nothing changed at resid_post.4")
    assert "Nothing changed" in CARDS["edit of nothing"].html


def test_a_site_with_heads_has_norms_and_largest_entries_by_head() -> None:
    values = np.zeros((5, 8, 32), np.float32)
    values[4, 6, 3] = -9
    text = views.snapshot_view(cards.look("z.2", values, "T H D")).plain
    assert "largest at the last position: 6.3: -9.00" in text
    values = np.zeros((5, 8, 32), np.float32)
    values[4, 6, 3] = -9
    text = views.snapshot_view(cards.look("z.2", values, "T H D")).plain.splitlines()
    assert text[text.index("norm of each head") + 1].split() == ["position", *"01234567"]
    assert text[-1].split() == ["4", "0", "0", "0", "0", "0", "0", "9.0", "0"]


def test_a_pattern_says_where_positions_look() -> None:
    weights = np.zeros((5, 2, 5), np.float32)
    weights[4, 0, 3], weights[4, 1, 0] = 1.0, 0.75
    text = views.snapshot_view(cards.look("pattern.2[4,6]", weights, "T H K")).plain
    rows = [line.split("  ", 1) for line in text.splitlines()[3:]]
    assert rows[0][0] == "4"
    assert rows[0][1].strip().startswith("3 ' France' 100 %")
    assert rows[1][0] == "6"
    assert rows[1][1].strip().startswith("0 'The' 75 %")
    weights = np.zeros((1, 1, 5), np.float32)
    weights[0, 0, 1] = 1.0
    look = dataclasses.replace(cards.look("pattern.2[4]", weights, "T H K"), positions=(2,), end=5)
    view = views.snapshot_view(look)
    assert "1 ' capital' 100 %" in view.plain
    assert "keys 0-4 across" in view.html
    look = dataclasses.replace(cards.look("pattern.2", cards.pattern()[:, :, 2:], "T H K"), positions=range(10, 15))
    assert list(look.key_positions) == [12, 13, 14]


@pytest.mark.parametrize("count", [5, 14, 90])
def test_a_pattern_that_the_engine_pooled_is_drawn_as_the_whole_is(count: int) -> None:
    weights = np.random.default_rng(1).random((count, 4, count)).astype(np.float32)
    whole = dataclasses.replace(cards.look("pattern.5", weights, "T H K"), texts={p: f" word{p}" for p in range(count)})
    most = pictures.PATTERN_CELLS
    asked = ReadPooled(
        session="a", heads=most.cells, most_heads=most.heads, strongest=most.strongest, strongest_at=most.queries
    )
    read = pooled(weights, site="pattern.5", axes="T H K", **heads_of(weights, asked))
    drawn = dataclasses.replace(whole, values=weights[:0], pooled=read)
    one, other = views.snapshot_view(drawn), views.snapshot_view(whole)
    assert one._repr_mimebundle_() == other._repr_mimebundle_()
    assert one.figure()._repr_mimebundle_() == other.figure()._repr_mimebundle_()


def test_a_pattern_of_some_dozen_tokens_is_a_picture_with_its_tokens_along_two_sides() -> None:
    count = 14
    weights = np.tril(np.ones((count, 4, count), np.float32).transpose(1, 0, 2)).transpose(1, 0, 2)
    look = dataclasses.replace(cards.look("pattern.5", weights, "T H K"), texts={p: f" word{p}" for p in range(count)})
    html = views.snapshot_view(look).html
    pictures, _, _ = html.partition("where position 13 looks")
    assert pictures.count("<img") == 4
    assert pictures.count("<span>\u00b7word7</span>") == 5  # of the query once, of the key below each head
    assert "queries 0-13 down, keys 0-13 across" in pictures


def test_the_lens_by_layer_keeps_the_last_positions_in_sight_and_follows_tokens() -> None:
    texts = (*(f" t{i}" for i in range(19)), "<|endoftext|>")
    rows = samples.lens_rows(tuple(range(20)), texts)
    view = views.lens_grid_view({"resid_post.3": rows})
    assert "top token at positions 8-19" in view.html
    assert '<th scope="col" class="dj-tint" title="&lt;|endoftext|&gt;">' in view.html
    assert view.html.count("<td ") == 12
    assert "'<|endoftext|>'" in view.plain
    card = CARDS["lens by layer of tokens"]
    assert card.html.count("%3Cpolyline") == 2
    assert card.plain.splitlines()[-1].split() == ["4", "38", "%", "39", "%"]


def test_a_watch_lists_norms_or_components_by_pass_and_what_it_left_out() -> None:
    assert CARDS["watch"].plain.splitlines()[-1].split() == ["1", "5", "17.1"]
    assert "data:image/svg+xml" in CARDS["watch"].html
    assert "nothing recorded yet" in CARDS["watch, empty"].html
    seen = [np.array([0.5, -2.0], np.float32), np.array([-1.5], np.float32)]
    view = views.watch_view(samples.watch(direction="gender"), seen, [(0, 1), (2,)])
    assert view.plain.splitlines()[0].startswith("watching resid_post.4 along gender: ")
    assert view.plain.splitlines()[-1].split() == ["1", "2", "-1.50"]
    assert "component at resid_post.4 along gender over 3 recorded positions" in view.html
    assert view.figure().made.layout.yaxis.title.text == "component"
    assert "2 passes left out at the cap of 256 MiB" in CARDS["watches"].plain


def test_sessions_say_who_holds_them_and_where_they_are() -> None:
    _, other, mine = CARDS["sessions"].plain.splitlines()
    assert other.endswith("another kernel")
    assert mine.startswith("\u25b8  rome")
    assert mine.endswith("this notebook")
    alone = views.sessions_view([samples.session(holder=None)], present=None, mine=set())
    assert alone.plain.endswith("no kernel")
    rows = [samples.session(name, holder=None) for name in ("a/10", "a-fork", "a/2", "a")]
    listed = views.sessions_view(rows, present=None, mine=set()).plain.splitlines()[1:]
    assert [line.strip().split("  ")[0] for line in listed] == ["a", "a/2 ... a/10", "a-fork"]
    # The session's own place is the host, where it has nothing left.
    away = {"residency": "host", "device_bytes": 0, "disk_bytes": 130 * 2**10}
    shown = views.sessions_view([samples.session(host_bytes=0, **away)], present=None, mine=set()).plain
    assert "130 KiB on disk  " in shown
    shown = views.sessions_view([samples.session(host_bytes=2**10, **away)], present=None, mine=set()).plain
    assert "1.00 KiB on host, 130 KiB on disk  " in shown
    head = views.sessions_view(
        [samples.session(breakpoints=(), rules=(), stopped_at=None)], present=None, mine=set()
    ).plain.splitlines()[0]
    assert head.split() == ["session", "state", "tokens", "memory", "idle", "held", "by"]
    assert "breaks" in CARDS["sessions"].plain.splitlines()[0]
    for direction, said in [
        ("out", "moved to host; nothing had to be copied, the host has it"),
        ("in", "restored from host; nothing had to be copied, the device has it"),
    ]:
        moved = Transfer(direction=direction, tier="host", bytes_moved=0, seconds=0.001, cause="asked")
        assert transfer_line(moved) == said


def test_breakpoints_history_and_unmeasured_figures_are_described() -> None:
    assert views.breakpoint_line(samples.described_breakpoint(site="resid_pre.3")) == (
        "breakpoint 1 at resid_pre.3, the input of layer 3"
    )
    assert (
        views.breakpoint_line(samples.described_breakpoint(site="z.3[1]", once=True)) == "breakpoint 1 at z.3[1], once"
    )
    stops = [
        StopDescription(index=i, site=f"resid_post.{i}", step=0, position=4, reason="step", edited=i > 0)
        for i in (0, 1)
    ]
    assert views.history_view(stops, 1).plain.splitlines()[2].split() == [
        "\u25b8",
        "2",
        "resid_post.1",
        "0",
        "step",
        "edited",
    ]
    assert "not measured (no accelerator)" in CARDS["status"].plain


def test_a_diff_counts_places_and_measures_the_differences() -> None:
    assert CARDS["diff"].plain.splitlines()[0] == "paris against rome: 1 of 7 positions differ, the first at 5"
    same = views.diff_view(cards.line("a"), cards.line("b"))
    assert "the same 7 tokens" in same.plain
    values = samples.values(5, samples.WIDTH, seed=1)
    assert f"values at resid_post.4: all {values.size:,} numbers are equal" in _diff(values, values).plain
    view = _diff(values, values * np.float32(1.5))
    assert "0: 0.50, 1: 0.50, 2: 0.50, 3: 0.50, 4: 0.50 (relative" in view.plain
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    assert f"at position {row}, index [{column}]: {float(values[row, column]):.9g} and" in view.plain
    assert f"at position {row}, index [{column}]: " in view.html
    odd = values.copy()
    odd[2, 3] = np.nan
    odd[3, 4] += 1
    said = _diff(values, odd, dtypes=("float32", "bfloat16")).plain
    assert f"2 of {values.size:,} numbers (float32 and bfloat16) differ; the most by 1" in said
    assert "1 of them are not finite on one side, and in no distance" in said
    wider = _diff(values, samples.values(6, samples.WIDTH + 1))
    assert "[5, 256] and [6, 257]: their positions have other shapes" in wider.plain
    lines = CARDS["diff by layer"].plain.splitlines()
    at = lines.index("relative distance by layer and position")
    assert [line.split()[0] for line in lines[at + 2 : at + 7]] == [f"resid_post.{i}" for i in range(5)]
    assert lines[at + 2].split() == ["resid_post.0", "0", "0", "0", "0", "0"]
    assert "0" not in lines[at + 6].split()
    for a, b, expected in [((), (), []), ((1, 2), (1, 2), []), ((1, 2), (1, 3), [1]), ((1,), (1, 2, 3), [1, 2])]:
        assert differing(a, b) == expected


def _diff(a: np.ndarray, b: np.ndarray, **changes: object) -> views.View:
    return views.diff_view(
        cards.line("a", seed=1), cards.line("b", seed=1), compared=compared.compared(a, b, **changes)
    )


@given(text=st.text(max_size=40) | st.just("a\x1b[31m \u202eb\u2066 \r\x00\u2028 $a$"))
def test_a_terminal_obeys_no_text_of_a_view(text: str) -> None:
    shown = views.dose_response_view([0, 1], {text: [1.0, 2.0]}, dose="x", response=text, title=text)
    for said in (repr(shown), shown._bundle()["text/plain"], shortened(text)):
        assert unshown(said.replace("\n", "")) is None
