"""The report of a card: each bar met, missed (by how much), or not measured (why). Reads files; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from djinn_evaluation.benchmarks.gpu.steps import STEPS

HEAD = "| step | bar | |\n|---|---|---|\n"
VERDICTS = ("met", "missed", "not measured", "so far")
NOT_YET = "it has not been run"


def report(folder: Path, reasons: Mapping[str, str]) -> str:
    """Return the report on the results in the folder; `reasons` say why a step has none."""
    rows = [row for step in STEPS for row in _step(step.name, folder / f"{step.name}.json", reasons)]
    counts = {word: sum(said.startswith(word) for _, _, said in rows) for word in VERDICTS}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    table = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)
    return f"# {folder.name}\n\n{_machine(folder)}{summary}.\n\n{HEAD}{table}"


def _step(name: str, path: Path, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    if not path.exists():
        yield name, "all of it", f"not measured: {reasons.get(name, NOT_YET)}"
        return
    found = json.loads(path.read_text())
    partial = found.get("partial")
    for figure in found["figures"]:
        if figure["bar"] is not None or figure["value"] is None:
            yield name, _wanted(figure), verdict(figure) if partial is None else f"so far {verdict(figure)}"
    if partial is not None:
        yield name, f"the rest, after {partial}", f"not measured: {reasons.get(name, 'it was cut')}"


def _wanted(figure: Mapping[str, Any]) -> str:
    bar = figure["bar"]
    return figure["name"] if bar is None else f"{figure['name']}: {bar['sense']} {bar['value']:g} {figure['unit']}"


def verdict(figure: Mapping[str, Any]) -> str:
    """Return the verdict on a figure of a result file."""
    value, bar = figure["value"], figure["bar"]
    if value is None:
        return f"not measured: {figure['not_run'] or 'the file does not say why'}"
    if figure["met"]:
        return f"met: {value['median']:.3g}"
    return f"missed by {abs(value['median'] - bar['value']):.3g} {figure['unit']}: {value['median']:.3g}"


def _machine(folder: Path) -> str:
    """Return the machine's line, from the first result there is."""
    files = [path for step in STEPS if (path := folder / f"{step.name}.json").exists()]
    if not files:
        return ""
    found = json.loads(files[0].read_text())
    versions = ", ".join(f"{name} {number}" for name, number in found["machine"]["versions"].items() if number)
    card = ", ".join(f"{name} {value}" for name, value in found["settings"].get("card", {}).items() if value)
    size = found["settings"].get("size", 1)
    small = f"At {size:g} of the usual size and in few rounds: that it runs, not how fast.\n\n" if size < 1 else ""
    return f"{found['machine']['device']}, {found['machine']['cpu']}; {versions}. Card: {card}.\n\n{small}"
