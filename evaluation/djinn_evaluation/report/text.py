"""The report for a terminal of 80 columns: wide tables are split, long lines wrapped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from djinn_evaluation.course import Course
from djinn_evaluation.machine import machine
from djinn_evaluation.report import tables

COLUMNS = 80
TableRows = Sequence[Sequence[str]]


def page(course: Course, name: str, verdict: str, failures: Sequence[str]) -> str:
    lines = [f"# {name}: {verdict}", "", *map(_broken, failures), ""]
    if course.remarks:
        lines += [*map(_broken, course.remarks), ""]
    if sums := tables.sums(course.written):
        lines += ["## Arithmetic", "", *map(_entry, sums), ""]
    for file, fields in course.written.items():
        lines += [f"## {file}", "", *_file(fields), ""]
    missing = [_entry(f"{field}: {why}") for field, why in tables.unmeasured(course.written)]
    lines += ["## Not measured", "", *(missing or ["Everything was."]), ""]
    lines += ["## Machine and versions", "", *(_entry(f"{field}: {value}") for field, value in machine())]
    return "\n".join(lines) + "\n"


def _file(fields: Mapping[str, Any]) -> Iterator[str]:
    for title, head, rows in tables.grids(fields):
        yield from (f"### {title}", "")
        for part in parts(head, rows):
            yield from (*part, "")
    for field, value in tables.rows(fields):
        yield _entry(f"{field}: {value}")


def parts(head: Sequence[str], rows: TableRows) -> Iterator[list[str]]:
    """Yield the table's lines, in parts that fit; each part begins with the columns that name a row."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    naming = [column for column, name in enumerate(head) if name in tables.NAMING]
    chosen = list(naming)
    for column in (column for column in range(len(head)) if column not in naming):
        if len(chosen) > len(naming) and sum(widths[c] + 3 for c in (*chosen, column)) + 1 > COLUMNS:
            yield _drawn(head, rows, chosen, widths)
            chosen = list(naming)
        chosen.append(column)
    yield _drawn(head, rows, chosen, widths)


def _drawn(head: Sequence[str], rows: TableRows, columns: Sequence[int], widths: Sequence[int]) -> list[str]:
    rule = ["-" * width for width in widths]
    return [f"| {' | '.join(row[c].ljust(widths[c]) for c in columns)} |" for row in (head, rule, *rows)]


def _entry(line: str) -> str:
    return _broken(f"- {line}", further="  ")


def _broken(line: str, further: str = "") -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
