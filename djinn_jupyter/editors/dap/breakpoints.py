"""The editor's breakpoints. A condition on a hit count is `3` or `== 3`, `>= 3`, `> 3`, `< 3`, `<= 3`, `% 3`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.errors import DjinnError, InvalidCondition, UnknownBreakpoint, UnknownSession
from djinn_jupyter.wire.nouns import BreakpointDescription
from djinn_jupyter.wire.readings import Figures

Holds = Callable[[int], bool]
_SPELLED = re.compile(r"^\s*(==|>=|<=|>|<|%)?\s*(\d{1,18})\s*$")
_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "%": lambda hits, every: hits % every == 0,
}


def read_hits(text: str | None) -> Holds | None:
    """Return the predicate that a hit condition spells, or None for empty text; InvalidCondition for other text."""
    if text is None or not text.strip():
        return None
    matched = _SPELLED.match(text)
    if matched is None or (matched[1] == "%" and int(matched[2]) == 0):
        raise InvalidCondition(f"{text!r} is no condition on a hit count; write 3, >= 3 or % 3.")
    compare, limit = _COMPARE[matched[1] or "=="], int(matched[2])
    return lambda hits: compare(hits, limit)


# Synchronize an editor's breakpoints with those of the session: an editor sends whole lists, the session has single
# breakpoints. Breakpoints set by other clients are left alone.

BreakpointKind = Literal["source", "function"]
_refused = count(1_000_000)  # ids of refused breakpoints; set breakpoints have the session's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBreakpoint:
    """A breakpoint requested by the editor. `failure`: the line that it was set at has no site."""

    site: str | None
    condition: str | None
    hits: str | None
    failure: DjinnError | None = None


@dataclass(slots=True, kw_only=True)
class EditorBreakpoint:
    """A breakpoint set for the editor. `ours`: the session had none there, so it goes with the editor's."""

    number: int
    kind: BreakpointKind
    ours: bool
    holds: Holds | None


@dataclass(slots=True)
class BreakpointRecord:
    """The record of those breakpoints of a session that the editor set."""

    _kept: dict[int, EditorBreakpoint] = field(default_factory=dict)

    def replace(
        self, session: RemoteSession, tree: ModelTree, kind: BreakpointKind, wanted: Iterable[WantedBreakpoint]
    ) -> list[dict[str, Any]]:
        """Replace the editor's breakpoints of a kind. Return the protocol's answer for each, also for refused ones."""
        before = {number for number, kept in self._kept.items() if kept.kind == kind}
        known = {point.number for point in session.breakpoints()}
        answers, now = [], set()
        for one in wanted:
            try:
                point = self._set(session, kind, one, known)
            except DjinnError as error:
                answers.append(refused(str(error)))
            else:
                now.add(point.number)
                answers.append(_answer(point, tree))
        self._take_away(session, before - now)
        return answers

    def clear(self, session: RemoteSession) -> None:
        self._take_away(session, set(self._kept))

    def _set(
        self, session: RemoteSession, kind: BreakpointKind, wanted: WantedBreakpoint, known: set[int]
    ) -> BreakpointDescription:
        if wanted.failure is not None:
            raise wanted.failure
        assert wanted.site is not None
        holds = read_hits(wanted.hits)
        point = session.breakpoint(wanted.site, when=(wanted.condition or "").strip() or None)
        former = self._kept.get(point.number)
        ours = former.ours if former is not None else point.number not in known
        self._kept[point.number] = EditorBreakpoint(number=point.number, kind=kind, ours=ours, holds=holds)
        return point

    def _take_away(self, session: RemoteSession, numbers: set[int]) -> None:
        for number in sorted(numbers):
            if self._kept.pop(number).ours:
                try:
                    session.clear(number)
                except (UnknownBreakpoint, UnknownSession):
                    pass  # another client cleared it, or closed the session

    def passes_by(self, stop: Paused) -> bool:
        """Return True where a run goes on from this stop: its breakpoint's hit condition does not hold."""
        met = stop.reply.breakpoint
        if stop.reason != "breakpoint" or met is None or stop.reply.also:
            return False
        kept = self._kept.get(met.number)
        return kept is not None and kept.holds is not None and not kept.holds(met.hits)

    def kind_of(self, stop: Paused) -> BreakpointKind | None:
        met = stop.reply.breakpoint
        kept = None if met is None else self._kept.get(met.number)
        return None if kept is None else kept.kind


def refused(sentence: str) -> dict[str, Any]:
    """Return the protocol's answer for a refused breakpoint."""
    return {"id": next(_refused), "verified": False, "message": sentence}


def _answer(point: BreakpointDescription, tree: ModelTree) -> dict[str, Any]:
    return {"id": point.number, "verified": True, "line": tree.line_of(point.site), "source": tree.source}


# Numbers of an activation in one line: shape, dtype, mean, extremes, norm. Pure functions of numpy arrays.

AnyArray = NDArray[Any]


def wide(values: AnyArray) -> AnyArray:
    """Convert to a dtype that numpy computes with: bfloat16 and float16 to float32, where their values are exact."""
    return values.astype(np.float32) if values.dtype.itemsize < 4 or values.dtype.kind != "f" else values


def number(value: float) -> str:
    return f"{float(value):.6g}"


def shape(values: AnyArray) -> str:
    return sizes(values.shape)


def sizes(of: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, of)) + "]"


def in_order(figures: Figures | Sequence[float]) -> dict[str, float]:
    """Return by name the figures of a value that the engine computed."""
    found = (
        [figures.mean, figures.std, figures.lowest, figures.highest, figures.norm]
        if isinstance(figures, Figures)
        else figures
    )
    return dict(zip(("mean", "std", "min", "max", "norm"), found, strict=True))


def spelled(statistics: Mapping[str, float]) -> str:
    """Spell `mean 0.0123, max 4.2, norm 23.7`."""
    return ", ".join(f"{name} {number(statistics[name])}" for name in ("mean", "max", "norm") if name in statistics)


def statistics(values: AnyArray) -> dict[str, float]:
    """Return mean, standard deviation, minimum, maximum and L2 norm, computed in float64. Empty for an empty array."""
    if values.size == 0:
        return {}
    numbers = values.astype(np.float64)
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "norm": float(np.linalg.norm(numbers.ravel())),
    }


def summary(values: AnyArray) -> str:
    """Spell `mean 0.0123, max 4.2, norm 23.7`; a single number as itself."""
    if values.ndim == 0:
        return number(values.item())
    return spelled(statistics(values)) or "empty"
