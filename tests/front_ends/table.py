"""The tables of docs/front_ends.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PAGE: Final = (Path(__file__).parents[2] / "docs" / "front_ends.md").read_text(encoding="utf-8")
PAGES: Final = ("JupyterLab 4.4", "JupyterLab 4.6", "Notebook 7")  # seen in Chromium


def rows_below(head: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is `head`, that of the headings too."""
    lines = PAGE[PAGE.index(f"| {head} |") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


_HEAD, *_ROWS = rows_below("front end")
TABLE: Final = {row[0]: dict(zip(_HEAD[1:], row[1:], strict=True)) for row in _ROWS}
