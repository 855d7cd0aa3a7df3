"""The view of a watch, pass by pass: the norm of a site's value, or its component along a direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.widgets.markup import folded, table
from djinn_jupyter.widgets.pictures import as_rows
from djinn_jupyter.widgets.spelling import amount, columns, figure, plural
from djinn_jupyter.widgets.svg import line_chart
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import WatchDescription
from djinn_jupyter.wire.watches import spell_watch

ROWS = 48


def watch_view(
    watch: WatchDescription,
    values: Sequence[NDArray[np.generic]],
    positions: Sequence[Sequence[int]],
    *,
    runs: Sequence[int] = (),
    hover: bool = False,
    session: str | None = None,
) -> View:
    """Draw the norms (or values, or components) of all recorded passes: `values`, `positions` and `runs` have one entry
    a pass."""
    names, title = _pass_names(runs, len(values)), spell_watch(watch.site, watch.direction)
    measure = _measure(watch, values)
    points = [
        (name, position, float(np.linalg.norm(row)) if measure == "norm" else float(row.item()))
        for name, value, covered in zip(names, values, positions, strict=True)
        for position, row in zip(covered, as_rows(value), strict=True)
    ]
    if not points:
        return View(
            plain=f"{watch_line(watch)}",
            html=card(title=mono(title), beside="nothing recorded yet", session=session),
        )

    def drawn() -> object:
        from djinn_jupyter.widgets import figures

        return figures.by_position([m for *_, m in points], [p for _, p, _ in points], measure=measure, title=title)

    shown = points[-ROWS:]
    rows = [[name, str(position), figure(measured)] for name, position, measured in shown]
    chart = line_chart(
        [measured for *_, measured in points],
        [f"position {points[0][1]}", f"position {points[-1][1]}"],
        alt=f"{measure} at {title} over {plural(len(points), 'recorded position')}",
    )
    head = ["run.pass" if len(set(runs)) > 1 else "pass", "position", measure]
    listed = folded(table(head, rows, numeric=(0, 1, 2)))
    html = card(part(chart, name=measure), part(listed), title=mono(title), beside=_counts(watch), session=session)
    few = rows[-8:]
    plain = f"{watch_line(watch)}\n{columns(few, head)}"
    return View(plain=plain, html=html, hover=drawn if hover else None)


def _measure(watch: WatchDescription, values: Sequence[NDArray[np.generic]]) -> str:
    """Name the number that is drawn of a position: its value where that is one number, else its norm; along a
    direction the component."""
    if watch.direction is not None:
        return "component"
    return "value" if all(one.size == len(one) for one in values) else "norm"


def _pass_names(runs: Sequence[int], count: int) -> list[str]:
    """Return the number of each pass; with several runs prefixed by the run's number: `2.0`."""
    if len(set(runs)) < 2:
        return [str(number) for number in range(count)]
    return [f"{run}.{number - runs.index(run)}" for number, run in enumerate(runs)]


def watch_line(watch: WatchDescription) -> str:
    return f"{watching(watch)}: {_counts(watch)}"


def watching(watch: WatchDescription) -> str:
    return f"watching {spell_watch(watch.site, watch.direction)}"


def _counts(watch: WatchDescription) -> str:
    held = f"{plural(watch.passes, 'pass', 'passes')} recorded, {amount(watch.bytes_held)}"
    if watch.passes_left_out:
        held += f"; {plural(watch.passes_left_out, 'pass', 'passes')} left out at the cap of {amount(watch.byte_cap)}"
    return held
