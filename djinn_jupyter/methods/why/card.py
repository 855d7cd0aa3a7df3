"""The largest parts of a score at the key and at the query, side by side."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.methods.why.api import ScoreParts
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import Html, card, div, element, facts, part, table
from djinn_jupyter.widgets.panels import Bars, cut
from djinn_jupyter.widgets.pictures import ABOVE, BELOW, background
from djinn_jupyter.widgets.spelling import columns, figure, logit, marked, percent, truncated
from djinn_jupyter.widgets.tokens import token_strip
from djinn_jupyter.widgets.view import View

SHOWN, SHOWN_PLAIN, DRAWN = 12, 8, 20  # parts of a side
LONGEST: Final = 24  # characters of a token
SIDES: Final = ("key", "query")
SAID: Final = (
    "what each earlier output adds to the score at that position, with the other position and the scales of norms held"
)


def score_view(read: ScoreParts, session: str | None = None) -> View:
    """Show a score and its largest parts at both positions."""
    numbers = _numbers(read)
    notes = [f"{SAID}.", *read.notes]
    strip = token_strip(read.texts, read.tokens[0], here={read.query, read.key})
    html = card(
        part(strip),
        facts(numbers),
        part(div("dj-pair", *(_side(read, at) for at in SIDES)), name="the largest parts"),
        part(*(div("dj-note", note) for note in notes)),
        title=f"Why head {read.head} attends",
        beside=f"from {_place(read, 'query')} to {_place(read, 'key')}",
        session=session,
    )
    plain = [
        f"Why head {read.head} attends from {_place(read, 'query')} to {_place(read, 'key')}: {SAID}",
        *(f"{name}: {value}" for name, value in numbers),
        *(columns(_rows(read, at, SHOWN_PLAIN), [_place(read, at), "part"]) for at in SIDES),
        *read.notes,
    ]
    return View(plain="\n".join(plain), html=html, chart=lambda: Chart(panels=[_bars(read, at) for at in SIDES]))


def _numbers(read: ScoreParts) -> list[tuple[str, str]]:
    changed = [("before the softmax", logit(read.given, signed=True))] if read.notes else []
    return [("score", logit(read.score, signed=True)), *changed, ("attention", percent(read.weight))]


def _place(read: ScoreParts, at: str) -> str:
    position = read.query if at == "query" else read.key
    return f"{at} {position} {truncated(marked(read.texts[position]), LONGEST)}"


def _rows(read: ScoreParts, at: str, count: int) -> list[list[str]]:
    """Return the largest parts of a side, what the others sum to, its constant and its rest."""
    side, found = read.side(at), read.top(count, at)
    others = sum(one.value for one in side.parts) - sum(value for *_, value in found)
    left = len(side.parts) - len(found)
    rows = [[labelled(name), logit(value, signed=True)] for _, name, value in found]
    rows += [[f"{left} others", logit(others, signed=True)]] if left else []
    return [*rows, ["biases", logit(side.constant, signed=True)], ["rest", figure(side.rest)]]


def _side(read: ScoreParts, at: str) -> Html:
    most = max((abs(value) for *_, value in read.top(1)), default=0.0) or 1.0
    found = [value for *_, value in read.top(SHOWN, at)]
    rows = [
        [name, _cell(said, found[number] / most if number < len(found) else 0.0)]
        for number, (name, said) in enumerate(_rows(read, at, SHOWN))
    ]
    return element("div", table([_place(read, at), "part"], rows))


def _cell(said: str, part_of_most: float) -> Html:
    style = background(ABOVE if part_of_most > 0 else BELOW, round(abs(part_of_most), 2) * 0.55)
    return element("td", said, class_="dj-tint dj-num", style=style)


def _bars(read: ScoreParts, at: str) -> Bars:
    found = read.top(DRAWN, at)
    return Bars(
        title=cut(f"head {read.head}, parts of the score at {_place(read, at)}", 96),
        names=[labelled(name) for _, name, _ in found],
        series={"part": [value for *_, value in found]},
        measure="score",
    )
