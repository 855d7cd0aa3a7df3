"""The results of a benchmark as JSON. A verdict is computed from a figure and its bar; unmeasured values are None."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from djinn_evaluation import EVALUATION
from djinn_evaluation.benchmarks.measuring import DECIDING, Readings, Spread
from djinn_evaluation.intervals import ratios
from djinn_evaluation.machine import Machine

HERE = EVALUATION / "results" / "benchmarks"


def usual() -> Path:
    """Return the folder of results: that of a checkout, or of an installed package one below the current directory."""
    return HERE if (EVALUATION / "pyproject.toml").is_file() else Path("djinn-results", "benchmarks").absolute()


class Disagreement(Exception):
    """Two sides that should have computed the same did not: their times mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`by_interval` where a spread is the interval of its median, which then has to be whole on one side of the bar."""

    sense: Literal["at least", "at most"]
    value: float
    by_interval: bool = False

    def met_by(self, figure: float) -> bool:
        return figure >= self.value if self.sense == "at least" else figure <= self.value

    def verdict(self, spread: Spread) -> bool | None:
        """Return whether the median meets the bar; None where its interval does not decide that."""
        if not self.by_interval:
            return self.met_by(spread.median)
        ends = {self.met_by(spread.low), self.met_by(spread.high)}
        return ends.pop() if len(ends) == 1 and spread.count >= DECIDING else None


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
        """True where the median meets the bar; None where there is no bar or no value, or the bar is not decided."""
        return None if self.bar is None or self.value is None else self.bar.verdict(self.value)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not run ({self.not_run})" if self.not_run else f"{self.name}: not measured"
        low, high = _spelled(self.value.low), _spelled(self.value.high)
        spread = f"{_spelled(self.value.median)} {self.unit} ({low} to {high})"
        if self.bar is None:
            return f"{self.name}: {spread}"
        verdict = {True: "met", False: "MISSED", None: "not decided"}[self.met]
        return f"{self.name}: {spread}, bar {self.bar.sense} {self.bar.value:g}: {verdict}"


def _spelled(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def compared(
    name: str,
    over: str,
    under: str,
    readings: Readings,
    *,
    unit: str,
    each: Callable[[float], float] = float,
    bar: Bar | None = None,
    not_run: str | None = None,
) -> Figure:
    """Return the figure of side `over` divided by side `under`, round by round. All sides are shown in `unit`, into
    which `each` converts a reading."""
    return Figure(
        name=name,
        unit="x",
        value=Spread.of(ratios(readings[over], readings[under])),
        bar=bar,
        sides={side: Spread.of(map(each, values)) for side, values in readings.items()},
        sides_unit=unit,
        not_run=not_run,
    )


def milliseconds(seconds: float) -> float:
    return 1000 * seconds


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
        self.add({what: 1})

    def add(self, counts: Mapping[str, int]) -> None:
        """Count agreements that were found elsewhere, as in an earlier turn."""
        for what, count in counts.items():
            self.counts[what] = self.counts.get(what, 0) + count


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def write(result: Result, machine: Machine, folder: Path, *, partial: str | None = None) -> Path:
    """Write NAME.json in `folder`, whole or not at all; return its path. `partial` says how far the benchmark came
    where this is not all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark}.json"
    written: dict[str, Any] = {
        "benchmark": result.benchmark,
        "machine": asdict(machine),
        "settings": {name: _plain(value) for name, value in result.settings.items()},
        "checks": dict(result.checks),
        "figures": [figure.to_json() for figure in result.figures],
    }
    if partial is not None:
        written["partial"] = partial
    return put(path, json.dumps(written, indent=1, allow_nan=False) + "\n")


def put(path: Path, text: str) -> Path:
    """Write a file, whole or not at all; return its path."""
    beside = path.with_suffix(".writing")
    beside.write_text(text)
    return beside.replace(path)


def whole(path: Path) -> bool:
    """Return whether the file is there and has all of its benchmark's figures."""
    return path.exists() and "partial" not in json.loads(path.read_text())


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def missed(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.met is False]
