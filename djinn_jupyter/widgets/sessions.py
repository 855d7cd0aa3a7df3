"""Lists of an engine's sessions, with the rows of a batch folded under its session, and of this machine's engines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from djinn_jupyter.api.batches import rows_below, rows_by_batch
from djinn_jupyter.api.engine import SessionList
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.tables import shortened
from djinn_jupyter.link.naming import distinct_labels
from djinn_jupyter.settings import short_name
from djinn_jupyter.widgets.html import Html, card, element, mono, part, span, table
from djinn_jupyter.widgets.memory import PLACES, bytes_where, copies, whereabouts
from djinn_jupyter.widgets.spelling import amount, columns, plural, since
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import natural_order, notebook_shown, shown

HEAD: Final = "|session|state|stopped at|tokens|breaks|rules|memory|idle|held by|shared with".split("|")
AT_TIMES: Final = ("stopped at", "breaks", "rules", "shared with")  # columns left out where they are empty
NUMERIC: Final = ("tokens", "breaks", "rules")
LONG: Final = ("session", "held by", "shared with")
FOLDED: Final = 2  # rows of a batch, from which on they are one line
MOST: Final = 200  # lines of a list
NAME: Final = 24  # characters of a feature's name
Cells = list[str]


def session_list_view(sessions: SessionList) -> View:
    """Show an engine's sessions, as the client sees them that listed them."""
    mine = {one.name: one.in_use for one in sessions if one.holder == sessions.holder}
    return sessions_view(sessions, present=next((name for name in mine if mine[name]), None), mine=mine)


def sessions_view(sessions: Sequence[SessionDescription], *, present: str | None, mine: Collection[str]) -> View:
    """List all sessions of an engine with their tiers and holders; the one in use here is marked, and those that no one
    has open are dimmed. The rows of a batch are one line."""
    if not sessions:
        return View(plain="no sessions", html=card(title="Sessions", beside="no sessions"))
    listed = _Listed(sessions, present, mine)
    more = len(listed.order) - MOST
    left_out = [part(f"the first {MOST} of {len(listed.order):,} sessions and batches")] if more > 0 else []
    return View(
        plain=shortened(columns(listed.plain(), listed.titles)),
        html=card(part(listed.drawn()), *left_out, title="Sessions", beside=plural(len(sessions), "session")),
    )


class _Listed:
    """A list of sessions: its columns, and its lines in order, each with the rows that are folded under it."""

    def __init__(self, sessions: Sequence[SessionDescription], present: str | None, mine: Collection[str]) -> None:
        self._there = {one.name: one for one in sessions}
        self._present, self._mine = present, mine
        self._shown = distinct_labels(self._there)
        self._cells = {name: self._line(one) for name, one in self._there.items()}
        kept = list(zip(*self._cells.values(), strict=True))
        self._kept = [n for n, title in enumerate(HEAD) if title not in AT_TIMES or {*kept[n]} - {"", "0"}]
        self.titles = [HEAD[n] for n in self._kept]
        self.folds = folded_rows(self._there, self._shown)
        within = {row for rows in self.folds.values() for row in rows}
        self.order = sorted({*self._there, *self.folds} - within, key=lambda name: natural_order(self._label(name)))

    def _label(self, name: str) -> str:
        return self._shown.get(name, name)

    def plain(self) -> list[Cells]:
        """Return the cells of all lines as text."""
        found = []
        for name in self.order:
            found += [self._cells[name]] if name in self._there else []
            found += [self._fold(self.folds[name])] if name in self.folds else []
        return [[cells[n] for n in self._kept] for cells in found]

    def drawn(self) -> Html:
        """Return the first lines as a table; a fold opens on a click."""
        lines: list[Sequence[object]] = []
        for name in self.order[:MOST]:
            lines += [self._drawn_line(name)] if name in self._there else []
            lines += [self._drawn_fold(self.folds[name])] if name in self.folds else []
        return self._table(self.titles, lines)

    def _table(self, head: Sequence[str], lines: Sequence[Sequence[object]]) -> Html:
        numeric = [at for at, title in enumerate(self.titles) if title in NUMERIC]
        return table(head, lines, numeric=numeric)

    def _drawn_line(self, name: str) -> list[object]:
        dimmed = self._there[name].holder is None and name not in (*self._mine, self._present)
        return [self._drawn_cell(HEAD[n], self._cells[name][n], dimmed) for n in self._kept]

    def _drawn_cell(self, title: str, text: str, dimmed: bool) -> object:
        made: object = mono(text) if title == "stopped at" else text
        made = span("dj-soft", made) if dimmed and text else made
        return element("td", made, class_="dj-long") if title in LONG else made

    def _drawn_fold(self, rows: Sequence[str]) -> list[object]:
        mark, named, state, *_ = self._fold(rows)
        below = self._table((), [self._drawn_line(row) for row in rows[:MOST]])
        rest = [f"the first {MOST} of {len(rows):,} rows"] if len(rows) > MOST else []
        opened = "" if mark else None
        opens = element("details", element("summary", f"{named}: {state}", class_="dj-soft"), below, *rest, open=opened)
        return ["", element("td", opens, colspan=len(self._kept) - 1)]

    def _fold(self, rows: Sequence[str]) -> Cells:
        """Return the one line of rows: `a/0 ... a/39`, with their count, states, tokens and bytes."""
        found = [self._there[row] for row in rows]
        states = Counter(one.doing if one.progress is None else "working" for one in found)
        told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        by_title = {
            "": "\u25b8" if self._present in rows else "",
            "session": f"{self._label(rows[0])} ... {self._label(rows[-1])}",
            "state": f"{plural(len(rows), 'row')}, {told}",
            "tokens": f"{sum(one.tokens for one in found)}",
            "memory": amount(sum(map(bytes_where, found))),
        }
        return [by_title.get(title, "") for title in HEAD]

    def _line(self, s: SessionDescription) -> Cells:
        also = [s.exactness if s.exactness != "exact" else "", s.attention or "", f"adapter {s.adapter or ''}"]
        return [
            "\u25b8" if s.name == self._present else "",
            self._shown[s.name],
            ", ".join([s.doing, *filter(None, also if s.adapter else also[:2])]),
            "" if s.stopped_at is None else f"{labelled(s.stopped_at, longest=NAME)}, step {s.step}",
            str(s.tokens),
            str(len(s.breakpoints)),
            str(len(s.rules)),
            _memory(s),
            "" if s.state == "running" or s.progress is not None else since(s.idle_seconds),
            "this notebook" if s.name in self._mine else _held_by(s),
            ", ".join(f"{one.person} ({one.access})" for one in s.shares),
        ]


def folded_rows(there: Mapping[str, SessionDescription], labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the rows to fold, in order, by the name of their session (their stem where that is closed), with the rows
    of rows."""
    rows = {batch: [one.name for one in found] for batch, found in rows_by_batch(there.values()).items()}
    within = {row for found in rows.values() for row in found}
    found = {batch: [*rows_below(batch, rows)] for batch in rows if batch not in within}
    return {
        batch: sorted(each, key=lambda name: natural_order(labels[name]))
        for batch, each in found.items()
        if len(each) >= FOLDED
    }


def engines_view(entries: Sequence[Entry]) -> View:
    """List the engines of this machine, and those elsewhere that this process has attached to."""
    if not entries:
        return View(plain="no engine runs", html=card(title="Engines", beside="none runs"))
    head = ["model", "dtype", "device", "attention", "process", "up", "listens on"]
    rows = [_engine(one) for one in entries]
    drawn = table(head, [[element("td", cells[0], class_="dj-long"), *cells[1:]] for cells in rows])
    return View(plain=shortened(columns(rows, head)), html=card(part(drawn), title="Engines"))


def _engine(entry: Entry) -> Cells:
    found = entry.found
    device = found.device if found.tensor_parallel == 1 else f"{found.device} x {found.tensor_parallel}"
    where = entry.commands if entry.is_afar else f"{entry.pid} on {entry.host}"
    up = since(max(0.0, time.time() - entry.started))
    told = (short_name(found.model), found.dtype, device, found.attention, where, up, entry.listens or "")
    return [shown(str(cell)) for cell in told]


def _held_by(s: SessionDescription) -> str:
    """Name the notebook that a session belongs to."""
    if s.notebook is not None:
        return notebook_shown(s.notebook)
    return "no kernel" if s.holder is None else "another kernel"


def _memory(s: SessionDescription) -> str:
    """Spell where its bytes are: `2.26 MiB on device, 141 KiB on host`."""
    here = f"{amount(bytes_where(s))} {PLACES[whereabouts(s)]}"
    return ", ".join(filter(None, (here, copies(s))))
