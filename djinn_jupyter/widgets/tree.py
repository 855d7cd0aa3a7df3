"""The tree of stops and forks: a line for each session, branching off its parent's line at the fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from djinn_jupyter.api.engine import TreeRow, rows_of
from djinn_jupyter.api.names import labelled
from djinn_jupyter.link.naming import distinct_labels
from djinn_jupyter.widgets.charts import AXIS, NARROW, SOFT, WIDTH, colour, drawn
from djinn_jupyter.widgets.html import Html, card, element, folded, part, table
from djinn_jupyter.widgets.spelling import plural, truncated
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.texts import label

LEFT, ROW, TOP = 140, 40, 26
FIRST = 44  # pixels from where forks begin to the first stop, whose name is clear of their lines
LETTERS = 16  # of the name of a session: of digits as many as there is room for
NAME_WIDE = 62  # pixels for the name of a stop; where stops are closer, only the present one is named
NAME_LARGE = 110  # the same where a narrow cell has larger letters
STATE_WIDE = 64
STOPS_DRAWN = 24  # of the longest line; the oldest stops are left out


def tree_view(branches: Sequence[Branch], *, present: str | None = None) -> View:
    """Draw all sessions; `present` is the session in use here."""
    rows = rows_of(branches)
    names = distinct_labels(row.branch.session for row in rows)
    lines = [line for row in rows for line in _lines(row, names, present)]
    listed = table(["session", "stop", "site", "step", ""], list(_cells(rows, names)), numeric=(1, 3))
    html = card(
        part(_drawing(rows, names, present)) if rows else None,
        part(folded(listed)) if rows else None,
        title="Stops and forks" if rows else "no sessions",
        beside=plural(len(rows), "session") if rows else None,
    )
    return View(plain="\n".join(["stops and forks", *lines]) if rows else "no sessions", html=html)


def _lines(row: TreeRow, names: dict[str, str], present: str | None) -> Iterator[str]:
    indent = "  " * row.depth
    yield f"{indent}{_head(row, names, present)}"
    for stop in row.own:
        mark = "\u25b8" if stop.index == row.branch.present else " "
        yield f"{indent}  {mark} {_stop(stop)}"


def _head(row: TreeRow, names: dict[str, str], present: str | None) -> str:
    branch = row.branch
    mine = " (in use)" if branch.session == present else ""
    state = f"{branch.state}, {plural(branch.tokens, 'token')}" if branch.tokens else branch.state
    dropped = f", {branch.dropped} older stops not kept" if branch.dropped else ""
    return f"{names[branch.session]}{mine}: {state}{_origin(row, names)}{dropped}"


def _origin(row: TreeRow, names: dict[str, str]) -> str:
    origin = row.branch.forked_from
    if origin is None:
        return ""
    if row.parent is None:
        return f", forked from {label(origin.session)}, which is gone"
    after = f" after its stop {row.at}" if row.at else " before its stops"
    return f", forked from {names[row.parent]}{after}"


def _stop(stop: StopDescription) -> str:
    return f"stop {stop.index + 1}: {labelled(stop.site)}, step {stop.step}{', edited' if stop.edited else ''}"


def _cells(rows: Sequence[TreeRow], names: dict[str, str]) -> Iterator[list[object]]:
    for row in rows:
        for stop in row.own:
            here = "stands here" if stop.index == row.branch.present else ""
            said = " ".join(filter(None, ("edited" if stop.edited else "", here)))
            yield [names[row.branch.session], stop.index + 1, labelled(stop.site), stop.step, said]


def _drawing(rows: Sequence[TreeRow], names: dict[str, str], present: str | None) -> Html:
    longest = max(len(row.branch.stops) for row in rows)
    skipped = max(0, longest - STOPS_DRAWN)
    across = (WIDTH - LEFT - FIRST - STATE_WIDE) / max(1, min(longest, STOPS_DRAWN))
    lanes = {row.branch.session: TOP + index * ROW for index, row in enumerate(rows)}

    def x(index: int) -> int:
        return LEFT + FIRST + round(max(0, index - skipped) * across)

    pieces: list[Html] = []
    for row in rows:
        pieces += _lane(row, lanes, x, names, present)
    said = "; ".join(_head(row, names, present) for row in rows)
    return drawn(*pieces, alt=f"stops and forks: {said}", height=TOP + len(rows) * ROW - 8, style=NARROW)


def _lane(
    row: TreeRow, lanes: dict[str, int], x: Callable[[int], int], names: dict[str, str], present: str | None
) -> Iterator[Html]:
    branch, y = row.branch, lanes[row.branch.session]
    ink = colour(list(lanes).index(branch.session))
    begins = x(row.at - 1) if row.parent is not None and row.at else LEFT
    if row.parent is not None:
        yield element("path", d=f"M{begins},{lanes[row.parent]}V{y}", fill="none", stroke=AXIS, stroke_width="1.5")
    yield element("path", d=f"M{begins},{y}H{x(len(branch.stops))}", fill="none", stroke=ink, stroke_width="1.5")
    weight = "bold" if branch.session == present else None
    name = truncated(names[branch.session], LETTERS)
    yield element("text", name, x=8, y=y + 4, fill=SOFT, font_size="12", font_weight=weight)
    for stop in row.own:
        here = stop.index == branch.present
        yield _dot(stop, x(stop.index), y, ink, here=here)
        apart = x(1) - x(0)
        if here or apart >= NAME_WIDE:
            yield _name(stop, x(stop.index), y, None if here or apart >= NAME_LARGE else "odd")
    if branch.present is None:
        yield element("text", branch.state, x=x(len(branch.stops)) + 4, y=y + 4, fill=SOFT, font_size="11")


def _dot(stop: StopDescription, x: int, y: int, ink: str, *, here: bool) -> Html:
    return element("circle", cx=x, cy=y, r=6 if here else 4, fill=ink if here or stop.edited else "#ffffff", stroke=ink)


def _name(stop: StopDescription, x: int, y: int, class_: str | None) -> Html:
    told = f"{stop.site}{'*' if stop.edited else ''}"
    return element("text", told, x=x, y=y - 10, text_anchor="middle", fill=SOFT, font_size="10", class_=class_)
