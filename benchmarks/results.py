"""The results of a benchmark as JSON. A verdict is computed from a figure and its bar; unmeasured values are None."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.machine import Machine
from benchmarks.measuring import Spread

HERE = Path(__file__).parent / "results"


class Disagreement(Exception):
    """Two sides that should have computed the same did not: their times mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    sense: Literal["at least", "at most"]
    value: float

    def met_by(self, figure: float) -> bool:
        return figure >= self.value if self.sense == "at least" else figure <= self.value


def at_least(value: float) -> Bar:
    return Bar(sense="at least", value=value)


def at_most(value: float) -> Bar:
    return Bar(sense="at most", value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its bar. `sides` are the absolute readings behind it, in `sides_unit`. `not_run` says why there
    is no value."""

    name: str
    unit: str
    value: Spread | None
    bar: Bar | None = None
    sides: Mapping[str, Spread | None] = field(default_factory=dict)
    sides_unit: str | None = None
    not_run: str | None = None

    @property
    def met(self) -> bool | None:
        """True where the median meets the bar; None where there is no bar or no value."""
        return None if self.bar is None or self.value is None else self.bar.met_by(self.value.median)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not run ({self.not_run})" if self.not_run else f"{self.name}: not measured"
        spread = f"{self.value.median:.3g} {self.unit} ({self.value.low:.3g} to {self.value.high:.3g})"
        if self.bar is None:
            return f"{self.name}: {spread}"
        verdict = "met" if self.met else "MISSED"
        return f"{self.name}: {spread}, bar {self.bar.sense} {self.bar.value:g}: {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`checks` were made while measuring: each names the comparison and counts its agreements."""

    benchmark: str
    settings: Mapping[str, Any]
    figures: tuple[Figure, ...]
    checks: Mapping[str, int] = field(default_factory=dict)


class Checks:
    """Counts agreements and refuses the first disagreement."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def same(self, what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            raise Disagreement(f"{what}: {_short(ours)} against {_short(theirs)}.")
        self.counts[what] = self.counts.get(what, 0) + 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def write(result: Result, machine: Machine, folder: Path) -> Path:
    """Write NAME.json in `folder`; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark}.json"
    written = {
        "benchmark": result.benchmark,
        "machine": asdict(machine),
        "settings": {name: _plain(value) for name, value in result.settings.items()},
        "checks": dict(result.checks),
        "figures": [figure.to_json() for figure in result.figures],
    }
    path.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n")
    return path


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def missed(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.met is False]
