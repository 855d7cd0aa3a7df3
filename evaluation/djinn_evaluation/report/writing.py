"""The report as a page: verdict, arithmetic, plots, tables, unmeasured fields, machine and versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from djinn_evaluation.course import REPORTS, Course, now
from djinn_evaluation.machine import machine
from djinn_evaluation.report import figures, tables, text

STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top}
td+td{font-variant-numeric:tabular-nums;word-break:break-word}h2{margin-top:1.6em;border-bottom:1px solid #ccc}
figure{margin:1em 0}svg{width:100%;height:auto}.key{margin-right:1.2em}
.key i{display:inline-block;width:10px;height:10px;margin-right:4px}.key{white-space:nowrap;display:inline-block}
.key i.dashed{height:0;width:16px;border-top:2px dashed currentColor;margin-bottom:3px}svg text{fill:currentColor}
.wide{overflow-x:auto}.wide table{font-size:12px}.wide th{border-bottom:1px solid #ccc;font-weight:600}
.wide td{word-break:normal;white-space:nowrap}.verdict{font-size:1.2em;font-weight:600}
@media (prefers-color-scheme:dark){body{background:#111;color:#ddd}h2{border-color:#444}}
"""


def write(course: Course, name: str, failures: Sequence[str]) -> None:
    """Write report.html and report.md in the folder of the course."""
    ended = "FAIL" if failures else "UNDECIDED" if course.undecided else "PASS"
    verdict = "BROKEN OFF" if course.broken_off else ended
    for file, made in zip(REPORTS, (_page, text.page), strict=True):
        course.put(file, made(course, name, verdict, [*failures, *course.undecided]))


def _page(course: Course, name: str, verdict: str, failures: Sequence[str]) -> str:
    parts = [
        f"<h1>{escape(name)}</h1><p class='verdict'>{verdict}</p>",
        "".join(f"<p>{escape(failure)}</p>" for failure in (*failures, *course.remarks)),
        f"<p>{now()}, {course.elapsed:.0f} seconds.</p>",
    ]
    sums = tables.sums(course.written)
    if sums:
        parts.append("<h2>Arithmetic</h2>" + "".join(f"<p>{escape(line)}</p>" for line in sums))
    parts.append(figures.latencies(course.written))
    for file, fields in course.written.items():
        parts.append(f"<h2>{escape(file)}</h2>")
        parts += figures.of_file(fields)
        parts += [_grid(*grid) for grid in tables.grids(fields)]
        parts.append(_table(tables.rows(fields)))
    parts.append("<h2>Not measured</h2>")
    missing = list(tables.unmeasured(course.written))
    parts.append(_table(missing) if missing else "<p>Everything was.</p>")
    parts.append(f"<h2>Machine and versions</h2>{_table(machine())}")
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(name)}: {verdict}</title>"
    return f"{head}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def _grid(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name).replace('_', '_<wbr>')}</th>" for name in head)
    below = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h3>{escape(title)}</h3><div class='wide'><table><tr>{top}</tr>{below}</table></div>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"
