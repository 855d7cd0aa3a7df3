"""The result files of the runs in a folder, and the values at a path in them. Judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from djinn_evaluation.afar import FIELD
from djinn_evaluation.claims import RUNS
from djinn_evaluation.commit import Code, present, same, spelled
from djinn_jupyter.errors import DjinnError

ARCHITECTURES = Path(__file__).parents[1] / "configuration" / "architectures"
ENDED = ("success", "passed", "undecided")  # the status of a file whose run came to its end and has no failure
REFUSED = (*ENDED, "error")


class NotMeasured(DjinnError):
    """A value that a claim reads is not there; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSource:
    """A field of a result file: `runs` are the names of its folders, several where a run is repeated; `path` is dotted,
    with `[]` for each entry of a list."""

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
    code: Code | None = field(default_factory=present)

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
        """Return why one of the files of these sources decides nothing: its run failed or was cut short, or is of other
        code. `refused`: a run that was refused is what is looked for. NotMeasured for a file that is not there."""
        for run, file in _places(reads):
            fields = self._fields(run, file)
            why = _missed(fields, REFUSED if refused else ENDED) or self._ended_badly(run)
            if why:
                return f"{run} {why}"
            if not same(fields.get("code"), self.code):
                made = spelled(fields.get("code"))
                return f"{run} is of other code ({made}) than the one that judges ({spelled(self.code)})"
        return None

    def _ended_badly(self, run: str) -> str:
        """Return how a run ended that wrote this file and failed elsewhere, or left the file of an earlier one."""
        path = self.folder / RUNS
        verdict: str = read(path)["runs"].get(run, {}).get("verdict", "PASS") if path.is_file() else "PASS"
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
        return read(path)


def read(path: Path) -> dict[str, Any]:
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
