"""One claim judged on the result files of the runs in a folder, and all of them as the fields of claims.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from djinn_evaluation.claims import RUNS
from djinn_evaluation.intervals import MedianInterval, Verdict
from djinn_evaluation.machine import Code, present_code, same_code, spelled_code
from djinn_evaluation.serving import FIELD
from djinn_jupyter.errors import DjinnError

REPETITIONS: Final = 2  # of what is right or wrong; an interval of times takes six
AT_THIS_SIZE: Final = "holds at this size"
VERDICTS: Final = ("holds", AT_THIS_SIZE, "refuted", "undecided")
ONE: Final = "one repetition decides nothing"
INSIDE: Final = "the interval has the bar inside"
WAITED: Final = "waiting for a core could have turned the verdict"
FEW: Final = "fewer than six repetitions have no interval of 95 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`value` is the figure that stands in the place of the original's, with the interval of its median where it has
    one; `reason` says why a claim is undecided, what refutes it, or which numbers of the sentence are larger."""

    verdict: Verdict | Literal["holds at this size"]
    value: Any
    interval: MedianInterval | None = None
    repetitions: int
    reason: str = ""

    def told_as(self, value: Any) -> Judgement:
        return replace(self, value=value)


UNREAD: Final = Judgement(verdict="undecided", value=None, repetitions=0, reason="there is no reading")


def every(held: Sequence[bool], otherwise: str) -> Judgement:
    """Judge what is right or wrong each time; `otherwise` says what was wrong. One repetition decides nothing."""
    share, count = sum(held) / len(held) if held else None, len(held)
    if count < REPETITIONS:
        return Judgement(verdict="undecided", value=share, repetitions=count, reason=ONE)
    if not all(held):
        return Judgement(verdict="refuted", value=share, repetitions=count, reason=otherwise)
    return Judgement(verdict="holds", value=share, repetitions=count)


def at_most(readings: Sequence[float], bar: float, of: str) -> Judgement:
    """Judge by the interval of the median whether it is at most `bar`. `of` names the readings in the reason."""
    if not readings:
        return UNREAD
    turned = MedianInterval.of([-reading for reading in readings]).at_least(-bar)
    return _judged(MedianInterval.of(readings), turned, f"the median of {of} is", f"not at most {bar:g}")


def at_least(readings: Sequence[float], bar: float, of: str) -> Judgement:
    """Judge by the interval of the median whether it is at least `bar`. `of` names the readings in the reason."""
    if not readings:
        return UNREAD
    found = MedianInterval.of(readings)
    return _judged(found, found.at_least(bar), f"the median of {of} is", f"not at least {bar:g}")


def arithmetic(holds: bool, value: Any, otherwise: str) -> Judgement:
    """Judge what is computed and not measured; a repetition would give the same."""
    reason = "by arithmetic" if holds else f"by arithmetic: {otherwise}"
    return Judgement(verdict="holds" if holds else "refuted", value=value, repetitions=0, reason=reason)


def together(first: Judgement, *others: Judgement) -> Judgement:
    """Return the worst of several judgements, with the value and interval of the first."""
    for verdict in ("refuted", "undecided"):
        for one in (first, *others):
            if one.verdict == verdict:
                return replace(first, verdict=one.verdict, reason=one.reason)
    return first


def read_interval(fields: Mapping[str, Any], bar: float, of: str) -> Judgement:
    """Judge a file's interval by a bar; what the file leaves open, for waiting for a core, stays so."""
    names = ("median", "low", "high", "count", "confidence")
    found = MedianInterval(**{name: fields[name] for name in names})
    judged = _judged(found, found.at_least(bar), f"the median of {of} is", f"not at least {bar:g}")
    left_open = fields["verdict"] == "undecided" != judged.verdict
    return replace(judged, verdict="undecided", reason=WAITED) if left_open else judged


def _judged(found: MedianInterval, verdict: Verdict, named: str, wanted: str) -> Judgement:
    """Return the judgement; its reason has the figure that missed, for a judgement of several has another value."""
    missed = f"{named} {found.median:.4g}, {wanted}"
    reasons = {"holds": "", "refuted": missed, "undecided": INSIDE if found.count > 5 else FEW}
    return Judgement(
        verdict=verdict, value=found.median, interval=found, repetitions=found.count, reason=reasons[verdict]
    )


ARCHITECTURES = Path(__file__).parents[1] / "configuration" / "architectures"
ENDED = ("success", "passed", "undecided")  # the status of a file whose run came to its end and has no failure
REFUSED = (*ENDED, "error")


class NotMeasured(DjinnError):
    """A value that a claim reads is not there; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSource:
    """A field of a result file in some runs' folders; `path` is dotted, with `[]` for each entry of a list."""

    runs: tuple[str, ...]
    file: str
    path: str

    @classmethod
    def of(cls, spelled: str) -> FieldSource:
        """Parse `whitebox+whitebox_again/djinn_breakpoint_results.json: os_overhead.percent`."""
        place, _, path = spelled.partition(": ")
        runs, _, file = place.partition("/")
        return cls(runs=tuple(runs.split("+")), file=file, path=path)

    @property
    def many(self) -> bool:
        return len(self.runs) > 1 or "[]" in self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The folder of `djinn experiment all`, with one folder for each run. `code` is that which judges."""

    folder: Path
    code: Code | None = field(default_factory=present_code)

    def read(self, spelled: str) -> Any:
        """Return the value at a source; the values at several, joined by ` & `, as one list. Raises NotMeasured."""
        parts = [FieldSource.of(part) for part in spelled.split(" & ")]
        if len(parts) == 1:
            return self.value(parts[0])
        found = [(part, self.value(part)) for part in parts]
        return [one for part, value in found for one in (value if part.many else [value])]

    def reached_over_a_line(self, reads: Iterable[str]) -> bool:
        """Return whether one of the files of these sources tells of an engine that was reached over a line."""
        return any(FIELD in self._fields(*place) for place in _places(reads))

    def fault(self, reads: Iterable[str], *, refused: bool = False) -> str | None:
        """Return why one of these files decides nothing: it failed, was cut, or is of other code."""
        for run, file in _places(reads):
            fields = self._fields(run, file)
            why = _missed(fields, REFUSED if refused else ENDED) or self._ended_badly(run)
            if why:
                return f"{run} {why}"
            if not same_code(fields.get("code"), self.code):
                made = spelled_code(fields.get("code"))
                return f"{run} is of other code ({made}) than the one that judges ({spelled_code(self.code)})"
        return None

    def _ended_badly(self, run: str) -> str:
        """Return how a run ended that wrote this file and failed elsewhere, or left the file of an earlier one."""
        path = self.folder / RUNS
        verdict: str = read_fields(path)["runs"].get(run, {}).get("verdict", "PASS") if path.is_file() else "PASS"
        return "" if verdict.startswith(("PASS", "UNDECIDED")) else f"did not pass: {verdict}"

    def value(self, source: FieldSource) -> Any:
        """Return the value at the source; a list where it is repeated. Raises NotMeasured."""
        found = [value for run in source.runs for value in self._values(run, source)]
        return found if source.many else found[0]

    def _values(self, run: str, source: FieldSource) -> list[Any]:
        fields = self._fields(run, source.file)
        try:
            found = list(_at(fields, source.path.split("."), source.path))
        except KeyError:
            raise NotMeasured(f"{run} has no {source.path}: {_ended(fields)}") from None
        if any(value is None for value in found):
            raise NotMeasured(f"{run} has not measured {source.path}: {_reason(fields, source.path)}")
        return found

    def _fields(self, run: str, file: str) -> dict[str, Any]:
        path = ARCHITECTURES / file if run == "architectures" else self.folder / run / file
        if not path.is_file():
            raise NotMeasured(f"there is no run {run} with a {file}")
        return read_fields(path)


def read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a result file. NotMeasured where it is not whole."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise NotMeasured(f"{path.parent.name} has a {path.name} that is not whole") from None
    return found


def _places(reads: Iterable[str]) -> list[tuple[str, str]]:
    """Return each run and file of some sources once; an architecture is of no run."""
    sources = (FieldSource.of(part) for spelled in reads for part in spelled.split(" & "))
    found = ((run, source.file) for source in sources for run in source.runs)
    return [*dict.fromkeys(place for place in found if place[0] != "architectures")]


def _missed(fields: dict[str, Any], ended: tuple[str, ...]) -> str:
    """Return how the run of a file failed, or was cut short; an empty text where its status is one of `ended`."""
    if fields.get("interrupted"):
        return "was cut short"
    if fields.get("failures"):
        return f"failed: {fields['failures'][0]}"
    status = fields.get("status", "not told")
    if status in ended and fields.get("passed") is not False:
        return ""
    told = fields.get("error") or (next(iter(fields.get("reasons", {}).values()), "") if status == "not_run" else "")
    return f"has the status {status}{f': {told}' if told else ''}"


def _at(value: Any, names: list[str], path: str) -> Iterator[Any]:
    """Yield the values at the rest of a path, each entry of a list on the way; None where a null is in the way."""
    if not names or value is None:
        yield value
        return
    name, many = names[0].removesuffix("[]"), names[0].endswith("[]")
    if not isinstance(value, dict) or name not in value:
        raise KeyError(path)
    inner = value[name]
    for entry in inner if many and inner is not None else [inner]:
        yield from _at(entry, names[1:], path)


def _reason(fields: dict[str, Any], path: str) -> str:
    plain = path.replace("[]", "")
    reasons: dict[str, str] = fields.get("reasons", {})
    told = (why for name, why in reasons.items() if plain.startswith(name.partition("[")[0]))
    return next(told, _ended(fields))


def _ended(fields: dict[str, Any]) -> str:
    return str(fields.get("error") or f"its status is {fields.get('status', 'not told')}")


GPU: Final = "a GPU"
Values = Mapping[str, Any]


def least(found: Any) -> float:
    """Return the least of the numbers that a run has, or the only one."""
    return float(min(found) if isinstance(found, list) else found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSize:
    """A number in a sentence and the run's field (else its value) that has to reach it, but for the share `near`."""

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
                return replace(UNREAD, reason=fault)
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
        needed = f"; it needs {self.needs}" if found is None and self.needs is not None else ""
        return replace(found or UNREAD, verdict="undecided", reason=f"{reason}{needed}")


def answers(results: Results, claims: Iterable[StatedClaim]) -> dict[str, Any]:
    """Return the claims with their verdicts, and how many have each."""
    rows = [_row(claim, claim.judged(results), results) for claim in claims]
    counts = Counter(row["verdict"] for row in rows)
    return {"summary": {name: counts[name] for name in VERDICTS}, "claims": rows}


def _row(claim: StatedClaim, found: Judgement, results: Results) -> dict[str, Any]:
    interval = None if found.interval is None else found.interval.fields()
    return {
        "claim": claim.number,
        "sentence": claim.sentence,
        "measured": claim.measured,
        "verdict": found.verdict,
        "value": found.value,
        "unit": claim.unit,
        "interval": interval,
        "repetitions": found.repetitions,
        "reason": found.reason,
        "needs": claim.needs if claim.needs is not None else claim.told_by,
        "beside": _beside(claim, results),
        "reads": dict(claim.reads),
    }


def _beside(claim: StatedClaim, results: Results) -> dict[str, Any]:
    """Return the fields that stand beside the value, as far as they were measured."""
    told = {}
    for name, spelled in claim.shows.items():
        try:
            told[name] = results.read(spelled)
        except NotMeasured:
            continue
    return told
