"""Heads as pictures: the scores of every head, and the patterns of all of them, small, side by side."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.heads.api import (
    CIRCUIT,
    MEAN,
    PAIR_KINDS,
    SUMMED,
    HeadPage,
    HeadPatterns,
    HeadScores,
    PairKind,
)
from djinn_jupyter.methods.heads.request import KINDS, HeadExample, Kind
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import (
    SCROLL,
    Html,
    card,
    div,
    element,
    facts,
    folded,
    joined,
    named,
    over,
    part,
    span,
    table,
)
from djinn_jupyter.widgets.panels import Bars, Heatmap, attention, cut, token_labels
from djinn_jupyter.widgets.pattern import CELL_ALONE, SIDE_NAMED, token_names
from djinn_jupyter.widgets.pictures import image, scale_legend, share_colour, shares
from djinn_jupyter.widgets.spelling import columns, ends, ends_note, figure, marked, percent, plural, share, truncated
from djinn_jupyter.widgets.tokens import cell_token, share_style
from djinn_jupyter.widgets.view import View

NAMES = {"previous": "previous token", "duplicate": "duplicate token", "induction": "induction"}
LOOKS = {
    "previous": "to the token before",
    "duplicate": "to earlier places with the same token",
    "induction": "to what followed these",
}
BEST = 4
LAYERS, HEADS = 48, 32  # drawn
WIDTH = 640  # of all patterns of a layer, in pixels
SMALLEST, LARGEST = 18, 72  # sides of a pattern
CELL = 14
LEGEND = "mean attention; layers down, heads across"
PANELS = 64  # of a figure
ROWS = 1024  # of the table of figures


def scores_view(scores: HeadScores) -> View:
    """Return a picture of each score, layers down and heads across, and the highest heads."""
    best = [[NAMES[kind], _looks(scores, kind), _best(scores, kind)] for kind in KINDS]
    notes = _cut(len(scores.layers), scores.heads)
    html = card(
        part(div("dj-pair", *(_map(scores, kind) for kind in KINDS)), scale_legend(LEGEND)),
        part(table(["", "a position looks", "the most"], best)),
        part(folded(_figures(scores))),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title="Heads",
        beside=scores.over,
    )
    plain = "\n".join([repr(scores), columns(best), *notes])
    return View(plain=plain, html=html, chart=lambda: Chart(panels=[_scored(scores, kind) for kind in KINDS]))


def _scored(scores: HeadScores, kind: Kind) -> Heatmap:
    return Heatmap(title=NAMES[kind], cells=getattr(scores, kind), rows=scores.layers, columns=range(scores.heads),
                   down="layer", across="head", measure="mean attention", signed=False)  # fmt: skip


def patterns_view(patterns: HeadPatterns, session: str | None = None) -> View:
    """Return all patterns of a token sequence: a row for each layer, a picture for each head."""
    layers = ends(len(patterns.layers), LAYERS)
    heads = min(patterns.heads, HEADS)
    side = max(SMALLEST, min(LARGEST, WIDTH // heads - 4))
    rows = [
        [f"layer {patterns.layers[at]}", *(_pattern(patterns, at, head, side) for head in range(heads))]
        for at in layers
    ]
    best = [[NAMES[kind], _best(patterns.scores, kind)] for kind in KINDS]
    length = len(patterns.texts)
    notes = _cut(len(patterns.layers), patterns.heads)
    beside = (
        f"{plural(len(patterns.layers), 'layer')}, {plural(patterns.heads, 'head')} each, {plural(length, 'token')}"
    )
    html = card(
        *(_by_token(patterns, *head) for head in patterns.chosen),
        part(
            table(["", *(str(head) for head in range(heads))], rows),
            scale_legend(_said(patterns)),
            name="queries down, keys across",
        ),
        part(table(["on this line", "the most"], best)),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title="Patterns of all heads",
        beside=beside,
        session=session,
    )
    told = [_looks_plain(patterns, *head) for head in patterns.chosen]
    plain = "\n".join([repr(patterns), *told, columns(best), *notes])
    return View(plain=plain, html=html, chart=lambda: _patterns(patterns))


def _patterns(patterns: HeadPatterns) -> Chart:
    """Return a picture for each chosen head, by default for all. Raises UsageError where they are too many."""
    every = [(layer, head) for layer in patterns.layers for head in range(patterns.heads)]
    drawn = list(patterns.chosen) or [one for one in every if not np.isnan(_of(patterns, *one)).any()]
    if len(drawn) > PANELS:
        raise UsageError(
            f"A figure of {len(drawn):,} patterns cannot be read, and {PANELS} are drawn at most: choose heads, as in "
            'patterns.choose("5.1").'
        )
    at = range(0, len(patterns.texts), patterns.pooled)
    labels = token_labels([patterns.texts[position] for position in at], at)
    each = [(f"pattern.{layer}[{head}]", _of(patterns, layer, head)) for layer, head in drawn]
    return Chart(panels=[attention(title, cells, labels, labels) for title, cells in each])


def _of(patterns: HeadPatterns, layer: int, head: int) -> NDArray[np.generic]:
    of_head: NDArray[np.generic] = patterns.values[patterns.layers.index(layer), head]
    return of_head


def _cut(layers: int, heads: int) -> list[str]:
    """Return a note on the layers and heads drawn, if not all are."""
    of_heads = [f"the first {HEADS} of {heads} heads"] if heads > HEADS else []
    return [*of_heads, *ends_note("layers", ends(layers, LAYERS), layers)]


def _looks(scores: HeadScores, kind: Kind) -> str:
    counted = scores.counted[kind]
    return f"{LOOKS[kind]} ({plural(counted, 'position')})"


def _best(scores: HeadScores, kind: Kind) -> str:
    found = scores.top(BEST, kind)
    return ", ".join(f"{layer}.{head} ({figure(score, 2)})" for layer, head, score in found) or "no such position"


def _map(scores: HeadScores, kind: Kind) -> Html:
    """Draw one score, layers down and heads across."""
    values = getattr(scores, kind)
    layers, heads = ends(len(scores.layers), LAYERS), min(scores.heads, HEADS)
    rows = [
        [
            element("td", scores.layers[at], class_="dj-soft dj-tight"),
            *(_cell(float(values[at, head]), f"{scores.layers[at]}.{head}") for head in range(heads)),
        ]
        for at in layers
    ]
    return element("div", named(NAMES[kind]), table(["", *map(over, range(heads))], rows))


def _cell(value: float, name: str) -> Html:
    if np.isnan(value):
        return element("td", "", title=f"{name}: none", style=f"min-width:{CELL}px;padding:0")
    red, green, blue = share_colour(share(value))
    style = f"background:rgb({red},{green},{blue});min-width:{CELL}px;height:{CELL}px;line-height:{CELL}px;padding:0"
    return element("td", "", title=f"{name}: {figure(value)}", style=style)


def _figures(scores: HeadScores) -> Html:
    found = scores.columns()
    rows = [
        [f"{layer}.{head}", *(figure(one, 2) for one in values)]
        for layer, head, *values in zip(*found.values(), strict=True)
    ]
    return table(["layer.head", *(NAMES[kind] for kind in KINDS)], rows[:ROWS], numeric=(1, 2, 3))


def _pattern(patterns: HeadPatterns, at: int, head: int, side: int) -> Html:
    values = patterns.values[at, head]
    if np.isnan(values).any():  # this layer has fewer heads
        return element("td", "", class_="dj-tight")
    alt = f"layer {patterns.layers[at]}, head {head}"
    picture = shares(values, side, side)
    return element("td", image(picture, width=side, height=side, alt=alt), class_="dj-tight", title=alt)


def _said(patterns: HeadPatterns) -> str:
    pooled = f"; blocks of {patterns.pooled} positions have their largest weight" if patterns.pooled > 1 else ""
    return f"attention of a query to a key{pooled}"


# A head token by token: a token under the pointer shows how much it attends to each token before it. The last one
# shows its own without a pointer.

TOKENS: Final = 48  # the last ones; the pairs of two take 40 bytes each
SIDE: Final = 240  # of the picture of a chosen head, in pixels
STRONGEST: Final = 3
BLOCKS: Final = (
    "beyond 64 tokens a pattern has blocks of positions, and no single tokens: %djinn_inspect pattern.N[H] has those"
)


def _by_token(patterns: HeadPatterns, layer: int, head: int) -> Html:
    """Return a chosen head: its picture, and where each token looks."""
    at, name = patterns.layers.index(layer), f"head {layer}.{head}: a token under the pointer shows where it looks"
    weights = patterns.values[at, head]
    if np.isnan(weights).any():
        return part(f"layer {layer} has fewer heads", name=name)
    drawn = _alone(patterns, weights, alt=f"layer {layer}, head {head}: queries down, keys across")
    if patterns.pooled > 1:
        return part(drawn, div("dj-note", BLOCKS), name=name)
    first = max(0, len(weights) - TOKENS)
    left_out = [div("dj-note", f"the last {TOKENS} of {len(weights)} tokens")] if first else []
    queries = [_query(patterns, weights, query, first) for query in range(first, len(weights))]
    strip = div("dj-queries", div("dj-keys", _keys(patterns, weights[-1], first)), joined(queries, " "))
    said = scale_legend("attention to the tokens before; without a pointer of the last one")
    return part(strip, said, drawn, *left_out, name=name)


def _alone(patterns: HeadPatterns, weights: NDArray[np.generic], alt: str) -> Html:
    """Draw a head; few tokens are named along two sides."""
    texts = patterns.texts
    if len(texts) > SIDE_NAMED:
        return image(shares(weights, SIDE, SIDE), width=SIDE, height=SIDE, alt=alt)
    cell = CELL_ALONE if len(texts) <= SIDE_NAMED // 2 else CELL
    side = cell * len(texts)
    picture = image(shares(weights), width=side, height=side, alt=alt)
    with_keys = element("div", picture, token_names(texts, cell, "vertical-lr"), style=SCROLL)
    return div("dj-pair", token_names(texts, cell, "horizontal-tb"), with_keys)


def _query(patterns: HeadPatterns, weights: NDArray[np.generic], query: int, first: int) -> Html:
    """Return a token with the tokens before it, shown when the pointer or the focus is on it."""
    seen = element("span", _keys(patterns, weights[query, : query + 1], first), class_="dj-keys", hidden="")
    name, said = marked(patterns.texts[query]), _strongest(patterns, weights[query, : query + 1])
    title = f"position {query} looks at {said}"
    token = span("", name, title=title)
    return element("span", token, seen, class_="dj-query", tabindex=0, role="note", aria_label=f"{name}, {title}")


def _keys(patterns: HeadPatterns, row: NDArray[np.generic], first: int) -> Html:
    return joined(
        element("bdi", marked(patterns.texts[key]), style=share_style(float(row[key])))
        for key in range(first, len(row))
    )


def _strongest(patterns: HeadPatterns, row: NDArray[np.generic]) -> str:
    keys = np.argsort(-np.asarray(row, dtype=np.float64), kind="stable")[:STRONGEST]
    return ", ".join(f"{key} {marked(patterns.texts[key])} {percent(float(row[key]))}" for key in keys if row[key] > 0)


def _looks_plain(patterns: HeadPatterns, layer: int, head: int) -> str:
    """Spell where the last position looks by a chosen head."""
    row = patterns.values[patterns.layers.index(layer), head, -1]
    if np.isnan(row).any() or patterns.pooled > 1:
        return f"head {layer}.{head}: no single tokens here"
    return f"head {layer}.{head}: the last position looks at {_strongest(patterns, row)}"


# A head's page.

EXAMPLES, EXAMPLES_PLAIN = 6, 2
STRONGEST_PAIRS, PAIRS_PLAIN = 10, 5
TOKEN: Final = 24  # characters of a token
DRAWN: Final = 15  # bars
KINDS_OF_PAIRS: Final = {
    SUMMED: ("attends from", "to", "weights summed"),
    MEAN: ("attends from", "to", "mean weight, met twice or more"),
    CIRCUIT: ("attending to", "raises the logit of", "OV circuit"),
}


def page_view(page: HeadPage) -> View:
    """Show a head: its scores and ranks, its strongest attention token by token, and its pairs of tokens."""
    numbers, notes = _page_numbers(page), _page_notes(page)
    strips = [_example(page, one) for one in page.examples[:EXAMPLES]]
    tables_of = [element("div", named(KINDS_OF_PAIRS[of][2]), _pairs(page, of)) for of in PAIR_KINDS
                 if page.top(1, of)]  # fmt: skip
    html = card(
        facts(numbers),
        part(*strips, scale_legend("attention of the underlined token to those before it"), name="its strongest")
        if strips
        else None,
        part(div("dj-pair", *tables_of), name="pairs of tokens") if tables_of else None,
        part(*(div("dj-note", note) for note in notes)),
        title=f"Head {page.head}",
        beside=f"over {plural(len(page.tokens), 'prompt')}",
    )
    plain = [
        f"Head {page.head} over {plural(len(page.tokens), 'prompt')}",
        *(f"{name}: {value}" for name, value in numbers),
        *(_example_plain(page, one) for one in page.examples[:EXAMPLES_PLAIN]),
        *(columns(_pair_rows(page, of, PAIRS_PLAIN), KINDS_OF_PAIRS[of]) for of in PAIR_KINDS if page.top(1, of)),
        *notes,
    ]
    return View(plain="\n".join(plain), html=html, chart=lambda: _page_chart(page))


def _page_numbers(page: HeadPage) -> list[tuple[str, str]]:
    found = [
        (NAMES[kind], "no such position" if rank is None else f"{figure(rank[0], 2)}, rank {rank[1]} of {rank[2]}")
        for kind, rank in page.ranks.items()
    ]
    share_of_first = [] if page.first_share is None else [("to the first position", percent(page.first_share))]
    copying = [] if page.circuit is None else [("copying", figure(page.circuit.copying, 2))]
    return [*found, *share_of_first, *copying]


def _page_notes(page: HeadPage) -> list[str]:
    """Return what the numbers are of, and what is not there."""
    notes = [f"Scores {page.scores.over}."]
    if page.tokens:
        notes.append("Attention to the first position is in no pair and no example.")
    else:
        notes.append("Give prompts to see what it attends to: over=prompts, or --prompts.")
    if page.circuit is None:
        notes.append(f"No OV circuit: {page.reply.unread}")
    else:
        folded = "; ".join(page.circuit.notes)
        notes.append(f"OV circuit: W_E W_V W_O W_U; {folded}. Scales of norms and biases are left out.")
    return [*notes, *page.reply.notes]


def _example(page: HeadPage, one: HeadExample) -> Html:
    """Draw a query with the tokens before it, coloured by its weights."""
    line = page.tokens[one.line]
    chips = [
        element(
            "code",
            _shown(page, line[at]),
            class_="dj-here" if at == one.query else None,
            style=share_style(weight),
            title=f"prompt {one.line}, position {at}: {percent(weight)}",
        )
        for at, weight in enumerate(one.weights, one.first)
    ]
    before = [] if one.key >= one.first else [element("code", _shown(page, line[one.key]),
              style=share_style(one.weight), title=f"prompt {one.line}, position {one.key}"), "\u2026"]  # fmt: skip
    return div("dj-tokens", joined([*before, *chips], " "), span("dj-soft", f" {percent(one.weight)}"))


def _example_plain(page: HeadPage, one: HeadExample) -> str:
    line = page.tokens[one.line]
    query, key = (f"{at} {_shown(page, line[at])}" for at in (one.query, one.key))
    return f"prompt {one.line}: {query} looks at {key} {percent(one.weight)}"


def _shown(page: HeadPage, token: int) -> str:
    return truncated(marked(page.spelled[token], token), TOKEN)


def _pair_rows(page: HeadPage, of: PairKind, count: int) -> list[list[str]]:
    table_of = page.columns()
    rows = zip(*(table_of[name] for name in ("of", "from_token", "to_token", "count", "value")), strict=True)
    chosen = [row for row in rows if row[0] == of][:count]
    return [
        [
            _shown(page, given),
            _shown(page, made),
            figure(value) + ("" if met is None else f" ({plural(met, 'time')})"),
        ]
        for _, given, made, met, value in chosen
    ]


def _pairs(page: HeadPage, of: PairKind) -> Html:
    rows = [[cell_token(given), cell_token(made), said] for given, made, said in _pair_rows(page, of, STRONGEST_PAIRS)]
    return table([*KINDS_OF_PAIRS[of][:2], ""], rows)


def _page_chart(page: HeadPage) -> Chart:
    """Return bars of each kind of pairs. Raises UsageError where the page has none."""
    kinds = [of for of in PAIR_KINDS if page.top(1, of)]
    if not kinds:
        raise UsageError("This page has no pairs of tokens to draw: give prompts, as over=prompts.")
    return Chart(panels=[_bars(page, of) for of in kinds])


def _bars(page: HeadPage, of: PairKind) -> Bars:
    found = page.top(DRAWN, of)
    measure = KINDS_OF_PAIRS[of][2]
    return Bars(
        title=f"head {page.head}: {measure}",
        names=[cut(f"{marked(given)} \u2192 {marked(made)}") for given, made, _ in found],
        series={"value": [value for *_, value in found]},
        measure="logit" if of == CIRCUIT else "attention",
    )
