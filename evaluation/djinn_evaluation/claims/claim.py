"""One claim of the original: its sentence, what is measured in its place, the fields it reads, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from djinn_evaluation.claims.judgement import AT_THIS_SIZE, Judgement
from djinn_evaluation.claims.results import NotMeasured, Results

GPU: Final = "a GPU"
Values = Mapping[str, Any]


def least(found: Any) -> float:
    """Return the least of the numbers that a run has, or the only one."""
    return float(min(found) if isinstance(found, list) else found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSize:
    """A number in a sentence, of `what`, and the field of the run that has to reach it, read by `of`; where there is no
    field, the value of the verdict has to. `near` is the share that may be missing."""

    number: float
    what: str
    field: str | None = None
    of: Callable[[Any], float] = least
    near: float = 0.0

    def missed(self, results: Results, value: Any) -> str:
        """Return the run's number and the sentence's where the run's is less; else an empty text."""
        try:
            found = self.of(value if self.field is None else results.read(self.field))
        except NotMeasured as missing:
            return f"{self.what}: {missing}"
        if found >= self.number * (1 - self.near):
            return ""
        return f"{self.what}: {found:.4g} here, {self.number:g} in the sentence"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedClaim:
    """`reads` names the fields that the verdict depends on, each by a word that `judge` finds it by. `needs` names a
    GPU or weights without which the claim cannot be decided; `met` returns True for readings that have it. `told_by`
    names what decides where these readings do not, such as the interval of a time on shared cores."""

    number: int
    sentence: str
    measured: str
    unit: str
    reads: Mapping[str, str]
    judge: Callable[[Values], Judgement]
    needs: str | None = None
    met: Callable[[Values], bool] = lambda values: False
    told_by: str | None = None
    shows: Mapping[str, str] = field(default_factory=dict)  # beside the value; no verdict depends on these
    sizes: tuple[StatedSize, ...] = ()  # what holds with less of one of them holds at this size
    refused: bool = False  # its runs have to be refused
    timed_here: bool = False  # by the client's clock, which counts the line to an engine of another machine too

    def judged(self, results: Results) -> Judgement:
        """Return the verdict on the runs in a folder."""
        try:
            fault = results.fault(self.reads.values(), refused=self.refused)
            if fault is not None:
                return Judgement(verdict="undecided", value=None, repetitions=0, reason=fault)
            values = {name: results.read(spelled) for name, spelled in self.reads.items()}
        except NotMeasured as missing:
            return self._undecided(None, str(missing))
        found = self.verdict_on(values)
        if self.timed_here and results.reached_over_a_line(self.reads.values()):
            return self._undecided(found, "its times have the line to the engine in them")
        return found if found.verdict != "holds" else self._sized(found, results)

    def _sized(self, found: Judgement, results: Results) -> Judgement:
        missed = [said for size in self.sizes if (said := size.missed(results, found.value))]
        return replace(found, verdict=AT_THIS_SIZE, reason="; ".join(missed)) if missed else found

    def verdict_on(self, values: Values) -> Judgement:
        """Return the verdict on the values of the fields read."""
        found = self.judge(values)
        if self.needs is not None and not self.met(values):
            return self._undecided(found, f"it needs {self.needs}")
        if found.verdict == "undecided" and self.told_by is not None:
            return self._undecided(found, f"{found.reason}; it needs {self.told_by}")
        return found

    def _undecided(self, found: Judgement | None, reason: str) -> Judgement:
        if found is None:
            needed = "" if self.needs is None else f"; it needs {self.needs}"
            return Judgement(verdict="undecided", value=None, repetitions=0, reason=f"{reason}{needed}")
        return Judgement(
            verdict="undecided",
            value=found.value,
            interval=found.interval,
            repetitions=found.repetitions,
            reason=reason,
        )
