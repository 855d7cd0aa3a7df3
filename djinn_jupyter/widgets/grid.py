"""A sweep as a picture: a cell for each place, tinted by how far its metric is from that of the unedited line; and a
table of the figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.client.grid import Grid
from djinn_jupyter.widgets.markup import Html, div, element, folded, joined, table
from djinn_jupyter.widgets.matrix import BLUE, ORANGE
from djinn_jupyter.widgets.spelling import columns, figure, marked, plural
from djinn_jupyter.widgets.theme import card, facts, mono, part
from djinn_jupyter.widgets.tokens import cell_token
from djinn_jupyter.widgets.view import View

ROWS, COLUMNS = 64, 96
PLAIN_COLUMNS = 16
JUDGED = 8
STRONGEST = "largest mean changes over pairs"


def grid_view(grid: Grid, *, hover: bool = False) -> View:
    values, rows, names = _matrix(grid)
    base = float(np.mean(grid.corrupted))
    some_rows, some_columns = _ends(len(rows), ROWS), _ends(len(names), COLUMNS)
    notes = [*grid.notes, *_cut("rows", some_rows, len(rows)), *_cut("columns", some_columns, len(names))]
    values = values[np.ix_(some_rows, some_columns)]
    rows, names = [rows[at] for at in some_rows], [names[at] for at in some_columns]
    judged = _judged(grid)
    html = card(
        part(_picture(values, base, rows, names), name=_legend(grid, base)),
        part(folded(_figures(values, rows, names))),
        part(table(judged[0], judged[1:], numeric=range(1, 6)), name=STRONGEST) if judged else None,
        facts(_facts(grid)),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title=mono(grid.metric),
        beside=f"{grid.edit} at {grid.site}, over {', '.join(grid.over)}",
    )
    plain = _plain(grid, values, rows, names, judged, notes)
    return View(plain=plain, html=html, hover=_hovering(grid) if hover else None)


def _matrix(grid: Grid) -> tuple[NDArray[np.float64], list[str], list[tuple[int, str]]]:
    """Return the values as a matrix (the mean over pairs), the names of its rows, and of its columns with a token
    each."""
    values = grid.values.mean(axis=0) if grid.paired else grid.values
    over, places = (grid.over[1:], grid.places()[1:]) if grid.paired else (grid.over, grid.places())
    texts = {} if grid.paired else dict(enumerate(grid.texts))
    names = [(at, texts.get(at, "") if over[-1] == "position" else "") for at in places[-1]]
    rows = [", ".join(f"{axis} {at}" for axis, at in zip(over, place, strict=False)) for place in
            itertools.product(*places[:-1])]  # fmt: skip
    return values.reshape(len(rows), len(names)), rows, names


def _picture(values: NDArray[Any], base: float, rows: Sequence[str], names: Sequence[tuple[int, str]]) -> Html:
    most = _most(values, base)
    titles = (
        element(
            "th", element("span", marked(text) if text else str(at), class_="dj-mono"), scope="col", class_="dj-key"
        )
        for at, text in names
    )
    heads = [element("td", name, style="white-space:nowrap") for name in rows]  # many columns would break the name
    made = [[head, *(_cell(value, base, most) for value in line)] for head, line in zip(heads, values, strict=False)]
    return table(["", *titles], made)


def _cell(value: float, base: float, most: float) -> Html:
    if np.isnan(value):
        return element("td", "", class_="dj-cell", title="not computed")
    change = value - base
    share = round(min(1.0, abs(change) / most), 2)
    style = f"background:rgba({ORANGE if change > 0 else BLUE},{share * 0.9:.2f})"
    return element("td", "", class_="dj-cell", style=style, title=figure(value))


def _told(value: float) -> str:
    return "" if np.isnan(value) else figure(float(value))


def _most(values: NDArray[Any], base: float) -> float:
    known = values[~np.isnan(values)]
    changed = known[known != base]
    return float(np.abs(changed - base).max()) if changed.size else 1.0


def _legend(grid: Grid, base: float) -> Html:
    of = "the mean over pairs, " if grid.paired else ""
    return joined([f"{of}orange above {figure(base)}, the corrupted line's, blue below; full colour at the largest"])


def _figures(values: NDArray[Any], rows: Sequence[str], names: Sequence[tuple[int, str]]) -> Html:
    head = ["", *(joined([f"{at} ", cell_token(text)]) if text else str(at) for at, text in names)]
    lines = [[name, *(_told(v) for v in line)] for name, line in zip(rows, values, strict=False)]
    return table(head, lines, numeric=tuple(range(1, len(head))))


def _facts(grid: Grid) -> list[tuple[str, str]]:
    corrupted, clean = float(np.mean(grid.corrupted)), grid.clean
    finished = int(np.count_nonzero(~np.isnan(grid.values)))
    found = [("corrupted", figure(corrupted))]
    if clean is not None:
        found.append(("clean", figure(float(np.mean(clean)))))
    if finished < grid.values.size:
        return [*found, ("cells", f"{finished:,} of {grid.values.size:,} finished")]
    equal = grid.values.size - grid.computed
    found.append(("cells", f"{grid.computed:,} computed, {equal:,} where the edit changes nothing"))
    if grid.largest_difference is None:
        return [*found, ("exactness", "each cell computed alone" if grid.mode == "exact" else "nothing to recheck")]
    rechecked = sum(len(one.rechecked) for one in grid.replies)
    said = f"{figure(grid.largest_difference, 2)} from {plural(rechecked, 'cell')} computed alone, seed {grid.seed}"
    return [*found, ("largest difference", said)]


def _plain(
    grid: Grid,
    values: NDArray[Any],
    rows: Sequence[str],
    names: Sequence[tuple[int, str]],
    judged: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> str:
    some = _ends(len(names), PLAIN_COLUMNS)
    head = ["", *(f"{at} {text!r}" if text else str(at) for at, text in (names[n] for n in some))]
    lines = [[name, *(_told(v) for v in line[some])] for name, line in zip(rows, values, strict=True)]
    told = [STRONGEST, columns(judged[1:], judged[0])] if judged else []
    said = [f"{name}: {value}" for name, value in _facts(grid)]
    return "\n".join([repr(grid), columns(lines, head), *_cut("columns", some, len(names)), *told, *said, *notes])


def _judged(grid: Grid) -> list[list[str]]:
    """Return a table of the cells with the largest mean changes, its head first; empty without several pairs."""
    if len(grid.replies) < 2 or not grid.paired:
        return []
    found = grid.statistics()
    change = np.nan_to_num(np.abs(found.change.reshape(-1)))
    head = ["", "change", "standard error", f"{found.confidence:.0%} interval", "p", "pairs"]
    lines = []
    for number in np.argsort(-change, kind="stable")[:JUDGED]:
        place = np.unravel_index(number, found.change.shape)
        name = ", ".join(f"{axis} {at[i]}" for axis, at, i in zip(grid.over[1:], grid.places()[1:], place, strict=True))
        at = {key: column[number] for key, column in found.columns().items()}
        interval = f"{figure(at['low'])} to {figure(at['high'])}"
        lines.append([name, figure(at["change"]), figure(at["standard_error"], 2), interval, figure(at["p"], 2)])
        lines[-1].append(str(at["pairs"]))
    return [head, *lines] if change.any() else []


def _ends(count: int, most: int) -> list[int]:
    """Return the first and the last of so many places, where they are more than can be drawn."""
    if count <= most:
        return list(range(count))
    return [*range(most // 2), *range(count - most // 2, count)]


def _cut(what: str, some: Sequence[int], count: int) -> list[str]:
    half = len(some) // 2
    return [] if len(some) == count else [f"the first {half} and the last {half} of {count} {what}"]


def _hovering(grid: Grid) -> Any:
    def made() -> Any:
        from djinn_jupyter.widgets import figures

        values, rows, names = _matrix(grid)
        change = np.nan_to_num(values - float(np.mean(grid.corrupted)))
        labels = [f"{at} {marked(text)}" if text else str(at) for at, text in names]
        return figures.changes(change, rows, labels, title=f"change of {grid.metric}")

    return made
