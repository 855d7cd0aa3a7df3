"""A sweep as a picture: a cell for each place, tinted by the difference of its metric from the unedited prompt's; and a
table of the figures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.names import labelled
from djinn_jupyter.methods.sweep.api.grid import FEWEST, NO_INTERVAL, Grid, places_shown
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import Html, card, div, element, facts, folded, joined, mono, over, part, table
from djinn_jupyter.widgets.panels import Heatmap, token_labels
from djinn_jupyter.widgets.pictures import ABOVE, BELOW, background
from djinn_jupyter.widgets.spelling import columns, ends, ends_note, figure, marked, plural
from djinn_jupyter.widgets.tokens import cell_token
from djinn_jupyter.widgets.view import View

ROWS, COLUMNS = 64, 96
PLAIN_COLUMNS = 16
JUDGED = 8
FLAT = 2  # letters that fit across a cell
CONFIRMED = 64
STRONGEST = "largest mean changes over pairs"
LARGEST = "largest changes, of the cells that are not drawn too"


def grid_view(grid: Grid) -> View:
    pictures = [_pictured(grid.of(number)) for number in range(len(grid.metrics))]
    notes = _once([*grid.notes, *(note for one in pictures for note in one.tall)])
    drawn = _once([*notes, *(note for one in pictures for note in one.wide)])
    html = card(
        *(part_of for one in pictures for part_of in one.parts(titled=grid.several)),
        facts(_facts(grid)),
        part(*(div("dj-note", note) for note in drawn)) if drawn else None,
        title=mono(grid.metric),
        beside=", over ".join(filter(None, (labelled(grid.what), ", ".join(grid.over)))),
    )
    figures = [one.plain(titled=grid.several) for one in pictures]
    plain = "\n".join([repr(grid), *figures, *(f"{name}: {value}" for name, value in _facts(grid)), *notes])
    return View(plain=plain, html=html, chart=lambda: _chart(grid), pictures="div:has(> table .dj-cell)")


def _once(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pictured:
    """The part of a card for one metric. `height` and `width` count all rows and columns of
    the grid, drawn or not."""

    grid: Grid
    values: NDArray[np.float64]
    rows: list[str]
    names: list[tuple[str, str]]
    across: str
    judged: list[list[str]]
    confirmed: list[list[str]]
    largest: list[list[str]]
    height: int
    width: int

    @property
    def tall(self) -> list[str]:
        """Notes on rows that are not drawn."""
        return ends_note("rows", range(len(self.rows)), self.height)

    @property
    def wide(self) -> list[str]:
        """Notes on columns that the card does not draw; plain text draws fewer, and has its own note."""
        return ends_note("columns", range(len(self.names)), self.width)

    def parts(self, *, titled: bool) -> list[Html]:
        base, judged = float(np.mean(self.grid.unedited)), self.judged
        named = (lambda said: joined([mono(self.grid.metric), " ", said])) if titled else (lambda said: said)
        return [
            part(_picture(self, base), name=named(_legend(self.grid, base, _most(self.values, base)))),
            part(folded(_figures(self))),
            *([part(table(judged[0], judged[1:], numeric=range(1, 6)), name=self._strongest)] if judged else []),
            *([self._confirmed(named(_agreement(self.grid)))] if self.confirmed else []),
            *([part(table(self.largest[0], self.largest[1:], numeric=(1, 2)), name=LARGEST)] if self.largest else []),
        ]

    @property
    def _strongest(self) -> str:
        """The name of the table of judged cells, with a note where they have no interval."""
        return STRONGEST if len(self.grid.replies) >= FEWEST else f"{STRONGEST}; {NO_INTERVAL}"

    def _confirmed(self, name: Html | str) -> Html:
        head, *lines = self.confirmed
        return part(table(head, lines, numeric=range(1, 3)), name=name)

    def plain(self, *, titled: bool) -> str:
        some = ends(len(self.names), PLAIN_COLUMNS)
        head = [self.across, *(f"{at} {text!r}" if text else str(at) for at, text in (self.names[n] for n in some))]
        lines = [[name, *(_told(v) for v in line[some])] for name, line in zip(self.rows, self.values, strict=True)]
        told = [self._strongest, columns(self.judged[1:], self.judged[0])] if self.judged else []
        if self.confirmed:
            told += [_agreement(self.grid), columns(self.confirmed[1:], self.confirmed[0])]
        if self.largest:
            told += [LARGEST, columns(self.largest[1:], self.largest[0])]
        title = [self.grid.metric] if titled else []
        return "\n".join([*title, columns(lines, head), *ends_note("columns", some, self.width), *told])


def _pictured(grid: Grid) -> _Pictured:
    values, rows, names, across = _matrix(grid)
    some_rows, some_columns = ends(len(rows), ROWS), ends(len(names), COLUMNS)
    return _Pictured(
        grid=grid,
        values=values[np.ix_(some_rows, some_columns)],
        rows=[rows[at] for at in some_rows],
        names=[names[at] for at in some_columns],
        across=across,
        judged=_judged(grid),
        confirmed=_confirmed(grid),
        largest=_largest(grid) if len(rows) > ROWS or len(names) > COLUMNS else [],
        height=len(rows),
        width=len(names),
    )


def _matrix(grid: Grid) -> tuple[NDArray[np.float64], list[str], list[tuple[str, str]], str]:
    """Return the values as a matrix (the mean over pairs), the names of its rows, those of its columns with a token
    each, and the kind of the columns."""
    values = grid.values.mean(axis=0) if grid.paired else grid.values
    over, places, shown = grid.over[grid.paired :], grid.places()[grid.paired :], places_shown(grid)[grid.paired :]
    split = len(over) // 2 if grid.in_pairs else len(over) - 1
    texts = {} if grid.in_pairs else _shared_tokens(grid)
    names = [
        (", ".join(names), texts.get(at[-1], "") if over[-1:] == ("position",) else "")
        for names, at in zip(itertools.product(*shown[split:]), itertools.product(*places[split:]), strict=True)
    ]
    rows = [", ".join(f"{axis} {at}" for axis, at in zip(over, place, strict=False)) for place in
            itertools.product(*shown[:split])]  # fmt: skip
    return values.reshape(len(rows), len(names)), rows, names, ", ".join(over[split:])


def _shared_tokens(grid: Grid) -> dict[Any, str]:
    """Return the token of each position at which all pairs have the same; aligned pairs have their own positions."""
    if "position" not in grid.over or not all(one.texts for one in grid.replies):
        return {}
    axis = grid.replies[0].over.index("position")
    each = ([one.texts[int(at)] for at in one.places[axis]] for one in grid.replies)
    placed = zip(grid.replies[0].places[axis], zip(*each, strict=True), strict=True)
    return {at: tokens[0] for at, tokens in placed if len(set(tokens)) == 1}


def _picture(of: _Pictured, base: float) -> Html:
    most = _most(of.values, base) or 1.0
    names = [marked(text) if text else at for at, text in of.names]
    titled = over if max(map(len, names)) <= FLAT else _upright
    titles = [titled(mono(name)) for name in names]
    heads = [element("td", name, style="white-space:nowrap") for name in of.rows]  # many columns would break the name
    made = [[head, *(_cell(value, base, most) for value in line)] for head, line in zip(heads, of.values, strict=False)]
    return table([of.across, *titles], made)


def _upright(name: Html) -> Html:
    """Return the head of a column whose name is wider than a cell."""
    return element("th", name, scope="col", class_="dj-key")


def _cell(value: float, base: float, most: float) -> Html:
    if np.isnan(value):
        return element("td", "", class_="dj-cell", title="not computed")
    change = value - base
    share = round(min(1.0, abs(change) / most), 2)
    style = background(ABOVE if change > 0 else BELOW, share * 0.9)
    return element("td", "", class_="dj-cell", style=style, title=figure(value))


def _told(value: float) -> str:
    return "" if np.isnan(value) else figure(float(value))


def _most(values: NDArray[Any], base: float) -> float | None:
    """Return the largest change; None where nothing changes."""
    known = values[~np.isnan(values)]
    changed = known[known != base]
    return float(np.abs(changed - base).max()) if changed.size else None


def _legend(grid: Grid, base: float, most: float | None) -> Html:
    of = "the mean over pairs, " if grid.paired else ""
    full = "nothing changes it" if most is None else f"full colour at a change of {figure(most)}"
    if grid.are_sizes:
        return joined([f"{of}orange by how much the metric would change, either way; {full}"])
    if grid.steps is not None:
        return joined([f"{of}orange where the metric would rise, blue where it would fall; {full}"])
    return joined([f"{of}orange above {figure(base)}, {_measured(grid)}, blue below; {full}"])


def _measured(grid: Grid) -> str:
    """Return the prompt whose metric is the reference of the colours; a single given prompt is neither of two."""
    return "the line's without the edit" if grid.clean is None else f"the {grid.into} line's"


def _figures(of: _Pictured) -> Html:
    head = [of.across, *(joined([f"{at} ", cell_token(text)]) if text else str(at) for at, text in of.names)]
    lines = [[name, *(_told(v) for v in line)] for name, line in zip(of.rows, of.values, strict=False)]
    return table(head, lines, numeric=tuple(range(1, len(head))))


def _facts(grid: Grid) -> list[tuple[str, str]]:
    found = [("corrupted" if grid.clean is not None else "unedited", _each(grid.corrupted, grid))]
    if grid.clean is not None:
        found.append(("clean", _each(grid.clean, grid)))
    if not grid.replies[0].over:  # one cell, which a picture alone would not show
        found.append(("edited", _each(grid.values, grid)))
    cells = grid.values.size // len(grid.metrics)
    finished = int(np.count_nonzero(~np.isnan(grid.values))) // len(grid.metrics)
    if finished < cells:
        return [*found, ("cells", f"{finished:,} of {cells:,} finished")]
    if grid.steps is not None:
        exact = 0 if grid.replies[0].confirmed is None else len(grid.replies[0].confirmed.cells)
        computed = f"{exact:,} of them computed exactly" if exact else "none computed"
        return [*found, ("cells", f"{cells:,} estimated, to first order, and {computed}")]
    found.append(("cells", f"{grid.computed:,} computed, {cells - grid.computed:,} where the edit changes nothing"))
    if grid.largest_difference is None:
        return [*found, ("exactness", "each cell computed alone" if grid.mode == "exact" else "nothing to recheck")]
    rechecked = sum(len(one.rechecked) for one in grid.replies)
    said = f"{figure(grid.largest_difference, 2)} from {plural(rechecked, 'cell')} computed alone, seed {grid.seed}"
    return [*found, ("largest difference", said)]


def _each(numbers: Any, grid: Grid) -> str:
    """Spell a number for each metric, the mean over pairs."""
    by_metric = np.reshape(numbers, (len(grid.replies), len(grid.metrics))).mean(0)
    return ", ".join(figure(float(number)) for number in by_metric)


def _judged(grid: Grid) -> list[list[str]]:
    """Return a table of the cells with the largest mean changes, its head first; empty without several pairs."""
    if len(grid.replies) < 2 or not grid.paired:
        return []
    found = grid.statistics()
    change = np.nan_to_num(np.abs(found.change.reshape(-1)))
    head = ["", "change", "standard error", f"{found.confidence:.0%} interval", "p", "pairs"]
    lines, over, shown = [], grid.over[1:], places_shown(grid)[1:]
    for number in np.argsort(-change, kind="stable")[:JUDGED]:
        place = np.unravel_index(number, found.change.shape)
        name = ", ".join(f"{axis} {at[i]}" for axis, at, i in zip(over, shown, place, strict=True))
        at = {key: column[number] for key, column in found.columns().items()}
        interval = "-" if np.isnan(at["low"]) else f"{figure(at['low'])} to {figure(at['high'])}"
        lines.append([name, figure(at["change"]), figure(at["standard_error"], 2), interval, figure(at["p"], 2)])
        lines[-1].append(str(at["pairs"]))
    return [head, *lines] if change.any() else []


def _largest(grid: Grid) -> list[list[str]]:
    """Return a table of the cells that change the metric most, its head first; empty for pairs, which are judged."""
    if grid.paired:
        return []
    change = np.nan_to_num(grid.values.reshape(-1) - float(np.mean(grid.unedited)))
    places = list(itertools.product(*places_shown(grid)))
    lines = [
        [", ".join(f"{axis} {at}" for axis, at in zip(grid.over, places[number], strict=True)), *map(figure, numbers)]
        for number in np.argsort(-np.abs(change), kind="stable")[:JUDGED]
        if change[number]
        for numbers in [(float(grid.values.reshape(-1)[number]), float(change[number]))]
    ]
    return [["", "metric", "change"], *lines] if lines else []


def _confirmed(grid: Grid) -> list[list[str]]:
    """Return a table of the confirmed cells, the largest estimates first, its head first; for pairs the mean over them.
    Empty without any."""
    changes = grid.confirmed
    if changes is None:
        return []
    pairs = len(grid.replies) if grid.paired else 1
    scores, exact = (of.reshape(pairs, -1).mean(0) for of in (grid.values, changes))
    places = list(itertools.product(*places_shown(grid)[grid.paired :]))
    over = grid.over[grid.paired :]
    there = [number for number in np.argsort(-np.abs(scores), kind="stable") if not np.isnan(exact[number])]
    lines = [
        [", ".join(f"{axis} {at}" for axis, at in zip(over, places[number], strict=True)), *map(figure, numbers)]
        for number in there[:CONFIRMED]
        for numbers in [(float(scores[number]), float(exact[number]))]
    ]
    return [["", "estimate", "exact"], *lines] if lines else []


def _agreement(grid: Grid) -> str:
    """Return the name of the table of confirmed cells."""
    found, count = grid.correlation, int(np.count_nonzero(~np.isnan(grid.confirmed)))
    how = "" if found is None else f": correlation {figure(found, 2)} over {plural(count, 'change')}"
    return f"estimates and exact changes{how}"


def _chart(grid: Grid) -> Chart:
    return Chart(panels=[_changes(grid.of(number)) for number in range(len(grid.metrics))])


def _changes(grid: Grid) -> Heatmap:
    """Return the difference of each cell's metric from the unedited prompt's (the mean over pairs, with its interval);
    NaN where it was not computed."""
    values, rows, names, across = _matrix(grid)
    judged = grid.statistics() if grid.paired and len(grid.replies) >= FEWEST else None
    low, high = (None, None) if judged is None else (of.reshape(values.shape) for of in (judged.low, judged.high))
    return Heatmap(
        title=f"change of {grid.metric}",
        cells=values - float(np.mean(grid.unedited)),
        rows=rows,
        columns=token_labels([text for _, text in names], [at for at, _ in names]),
        across=across,
        measure="mean change over pairs" if grid.paired else "change",
        low=low,
        high=high,
    )
