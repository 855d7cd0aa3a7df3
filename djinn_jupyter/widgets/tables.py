"""Lists as tables: breakpoints, rules, watches, sessions, the stops of a session."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.tables import Displayed, is_told_as_table
from djinn_jupyter.widgets.html import card, element, mono, part, table
from djinn_jupyter.widgets.lens import watch_line
from djinn_jupyter.widgets.result import rule_line
from djinn_jupyter.widgets.spelling import columns, figure, plural
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire import nouns
from djinn_jupyter.wire.looks import spell_watch
from djinn_jupyter.wire.replies import Finished, Paused
from djinn_jupyter.wire.texts import label

TableRows = Sequence[Sequence[str]]

SHOWN_CHARACTERS = 60
MOST: Final = 48  # rows of a result


def table_view(result: Displayed) -> View:
    """Show any result as its text and, where it is a table, its first rows."""
    told, plain = result.told(), repr(result)
    rows = [[_figure(one) for one in row] for row in islice(zip(*told.values(), strict=True), MOST)]
    count = max(map(len, told.values()), default=0)
    more = [part(f"the first {MOST} of {count:,} rows")] if count > MOST else []
    lines = [] if is_told_as_table(result) else [part(line) for line in plain.splitlines()]
    drawn = [part(table(list(told), rows))] if rows else []
    return View(plain=plain, html=card(*lines, *drawn, *more, title=type(result).__name__))


def _figure(value: object) -> str:
    return figure(value) if isinstance(value, float) else "" if value is None else str(value)


def breakpoints_view(points: Sequence[nouns.BreakpointDescription], *, session: str | None = None) -> View:
    rows = [[str(p.number), labelled(p.site), p.when or "", _kind(p), str(p.hits)] for p in points]
    head = ["number", "site", "when", "", "hits"]
    return _listed("Breakpoints", head, rows, "no breakpoints", numeric=(0, 4), code=(1, 2), session=session)


def _kind(point: nouns.BreakpointDescription) -> str:
    return " ".join(word for word, true in (("once", point.once), ("disabled", not point.enabled)) if true)


def breakpoint_line(point: nouns.BreakpointDescription, *, existed: bool = False) -> str:
    """Spell a breakpoint: `breakpoint 1 at resid_post.20, the output of layer 20`."""
    line = f"breakpoint {point.number} at {labelled(point.site)}"
    described = described_site(point.site)
    line += f", {described}" if described else ""
    line += f", when {point.when}" if point.when else ""
    line += ", once" if point.once else ""
    return line + (" (already set)" if existed else "")


def described_site(site: str) -> str | None:
    """Return plain words for resid_post and resid_pre, the points most often confused; None for other sites."""
    point, _, rest = site.partition(".")
    words = {"resid_post": "the output of layer", "resid_pre": "the input of layer"}
    return f"{words[point]} {rest}" if point in words and rest.isdigit() else None


def rules_view(rules: Sequence[nouns.RuleDescription], *, session: str | None = None) -> View:
    lines = [rule_line(rule) for rule in rules]
    return _lines("Steering rules", lines, "no steering rules", session)


def watches_view(watches: Sequence[nouns.WatchDescription], *, session: str | None = None) -> View:
    return _lines("Watches", [watch_line(watch) for watch in watches], "no watches", session)


def rows_view(session: str, rows: Sequence[Paused | Finished | str | None], doses: Sequence[float] = ()) -> View:
    """List the rows of a session's batch: where each ended, the sentence of its error, or nothing where it runs; in a
    dose-response with the coefficient of each."""
    stem = next((row.session.rpartition("/")[0] for row in rows if isinstance(row, Paused | Finished)), label(session))
    spelled = [f"{dose:g}" for dose in doses] or [""] * len(rows)
    cells = [[f"{stem}/{number}", spelled[number], *_row(row)] for number, row in enumerate(rows)]
    prompts = {row[2] for row in cells if row[2]}
    head = ["session", "coefficient", "prompt", "new text", "new tokens", "ended"]
    left_out = {title for title, there in (("coefficient", doses), ("prompt", len(prompts) > 1)) if not there}
    kept = [i for i, title in enumerate(head) if title not in left_out]
    return _listed(
        "Rows",
        [head[i] for i in kept],
        [[row[i] for i in kept] for row in cells],
        "no rows",
        numeric=[kept.index(i) for i in (1, 4) if i in kept],
        code=(kept.index(3),),
        long=[column for column, i in enumerate(kept) if i in (0, 2, 3)],
        session=session,
    )


def _row(row: Paused | Finished | str | None) -> list[str]:
    match row:
        case Paused():
            place = f"paused at {labelled(row.site)}, step {row.step}"
            return [cut(row.prompt_text), cut(row.new_text), str(len(row.log_probabilities)), place]
        case Finished():
            alone = f"; {row.note}" if row.note else ""
            return [cut(row.prompt_text), cut(row.text), str(len(row.tokens)), row.reason + alone]
        case None:
            return ["", "", "", "under way"]
    return ["", "", "", f"failed: {row}"]


def cut(text: str) -> str:
    """Return the end of a text as one line, as long as fits a cell."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= SHOWN_CHARACTERS else "..." + line[-SHOWN_CHARACTERS:]


def history_view(stops: Sequence[nouns.StopDescription], present: int | None, *, session: str | None = None) -> View:
    rows = [
        [
            "\u25b8" if s.index == present else "",
            str(s.index + 1),
            labelled(s.site),
            str(s.step),
            s.reason,
            "edited" if s.edited else "",
        ]
        for s in stops
    ]
    return _listed(
        "Stops",
        ["", "stop", "site", "step", "why", ""],
        rows,
        "no stops yet",
        numeric=(1, 3),
        code=(2,),
        session=session,
    )


def armed(session: nouns.SessionDescription) -> str:
    """Spell a session's existing state: `2 breakpoints (resid_post.4, z.3[1]), stopped at resid_post.4, step 0`."""
    parts = []
    if session.breakpoints:
        sites = ", ".join(p.site for p in session.breakpoints)
        parts.append(f"{plural(len(session.breakpoints), 'breakpoint')} ({sites})")
    if session.rules:
        parts.append(f"{plural(len(session.rules), 'steering rule')} ({', '.join(r.site for r in session.rules)})")
    if session.watches:
        watched = ", ".join(spell_watch(w.site, w.direction) for w in session.watches)
        parts.append(f"{plural(len(session.watches), 'watch', 'watches')} ({watched})")
    if session.stopped_at is not None:
        parts.append(f"stopped at {session.stopped_at}, step {session.step}")
    if session.tokens:
        parts.append(plural(session.tokens, "token"))
    if session.residency in ("host", "disk"):
        parts.append(f"swapped out to {session.residency}")
    if session.attention is not None:
        parts.append(f"{session.attention} attention")
    if session.adapter is not None:
        parts.append(f"the adapter {session.adapter}")
    if session.exactness == "fast":
        parts.append("computed in passes that it shared with others, so that last bits may differ (fast)")
    if session.exactness == "recomputed":
        parts.append(
            "recomputed after a recovery: tokens were run again after the engine had died, which on this machine gives "
            "the same bits (%djinn_accept takes note of it)"
        )
    if not session.kept:
        parts.append("not in the journal as it is (%djinn_status says why)")
    return labelled(", ".join(parts)) or "nothing armed"


def _listed(
    title: str,
    head: Sequence[str],
    rows: TableRows,
    empty: str,
    *,
    numeric: Sequence[int],
    code: Sequence[int],
    long: Sequence[int] = (),
    session: str | None = None,
) -> View:
    """Show rows as a table; the columns in `code` are set as code, and words of those in `long` are broken where there
    is no room for them."""
    if not rows:
        return View(plain=empty, html=card(title=title, beside=empty, session=session))
    made = [[_cell(cell, code=i in code, long=i in long) for i, cell in enumerate(row)] for row in rows]
    drawn = table(head, made, numeric=numeric)
    return View(plain=columns(rows, head), html=card(part(drawn), title=title, session=session))


def _cell(text: str, *, code: bool, long: bool) -> str:
    shown = mono(text) if code else text
    return element("td", shown, class_="dj-long") if long else shown


def _lines(title: str, lines: Sequence[str], empty: str, session: str | None) -> View:
    if not lines:
        return View(plain=empty, html=card(title=title, beside=empty, session=session))
    rows = [[line] for line in lines]
    return View(plain="\n".join(lines), html=card(part(table((), rows)), title=title, session=session))
