"""The run of `validation`: the three tests one after the other, each with an engine of its own, and the summary."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from djinn_evaluation.configuration.sections import TESTS, ValidationFile
from djinn_evaluation.course import NOT_YET, Course, TimeIsUp, Unmeasured, now
from djinn_evaluation.validation import flatline, logit_equivalence, sleep
from djinn_evaluation.validation.opening import options_of
from djinn_jupyter.errors import DjinnError, UsageError

LOG = "validation.log"
SUMMARY = "validation_summary.json"
MODULES: dict[str, Any] = {
    "logit_equivalence": logit_equivalence,
    "pcie_flatline": flatline,
    "agent_sleep_resume": sleep,
}
FILES = (SUMMARY, *(test.FILE for test in MODULES.values()))


def run(course: Course, file: ValidationFile) -> list[str]:
    """Write a file for each test and the summary; return the failures. A test that raises counts as an error."""
    options_of(course, file)  # refused before anything runs
    course.tell(f"{file.experiment.name} {file.experiment.version}: {file.experiment.description}")
    asked = {name: wanted for name in TESTS if (wanted := getattr(file, name)) is not None and wanted.enabled}
    results: dict[str, dict[str, Any]] = {name: {"status": "not_run" if name in asked else "skipped"} for name in TESTS}
    failures: list[str] = []
    begun = time.monotonic()
    for name, wanted in asked.items():
        results[name] = {"status": "partial"}
        course.write_partial(SUMMARY, (), _summary(file, results, time.monotonic() - begun))
        results[name], said = _one(course, file, name, wanted)
        failures += [f"{name}: {sentence}" for sentence in said]
    status = course.concluded(failures)
    course.write(SUMMARY, {"status": status, **_summary(file, results, time.monotonic() - begun)})
    return failures


def _one(course: Course, file: ValidationFile, name: str, wanted: Any) -> tuple[dict[str, Any], list[str]]:
    """Run one test and write its file; return its entry in the summary, and its failures."""
    test, named = MODULES[name], {"test": name, "model": course.setup.named(wanted.model_id), "timestamp": now()}
    course.tell(f"{name} on {named['model']}")
    course.write_partial(test.FILE, test.FIELDS, named)
    try:
        fields = test.run(course, file, wanted)
    except TimeIsUp:
        raise
    except UsageError as refused:
        if course.setup.server is None:
            return _broken(course, test, named, refused)
        return _not_served(course, test, named, refused)
    except DjinnError as error:
        return _broken(course, test, named, error)
    open_ = fields.get("undecided", [])
    status = "failed" if fields["failures"] else "undecided" if open_ else "passed"
    for sentence in open_:
        if sentence not in course.undecided:  # as one of the whole run, for what all its tests are held against
            course.leave_open(f"{name}: {sentence}")
    course.write(test.FILE, {"status": status, **fields})
    ended = {name: fields[name] for name in ("passed", "failures")}
    return {"status": status, **ended, "undecided": open_}, fields["failures"]


def _broken(course: Course, test: Any, named: dict[str, Any], error: DjinnError) -> tuple[dict[str, Any], list[str]]:
    """Write the file of a test that raised; return its entry in the summary, and its failure."""
    ended = {"status": "error", "passed": False, "error": str(error)}
    course.write(test.FILE, {**dict.fromkeys(test.FIELDS, NOT_YET), **named, **ended})
    return ended, [str(error)]


def _not_served(
    course: Course, test: Any, named: dict[str, Any], refused: UsageError
) -> tuple[dict[str, Any], list[str]]:
    """Write the file of a test that the engine which runs already cannot serve: it is not run, and left undecided."""
    reason = Unmeasured(reason=str(refused))
    course.leave_open(f"{named['test']}: {refused}")
    ended = {"status": "not_run", "passed": reason, "undecided": [str(refused)]}
    course.write(test.FILE, {**dict.fromkeys(test.FIELDS, reason), **named, **ended})
    return ended, []


def _summary(file: ValidationFile, results: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    counts = [result["status"] for result in results.values()]
    return {
        "config": msgspec.to_builtins(file),
        "experiment": file.experiment.name,
        "timestamp": now(),
        "duration_seconds": seconds,
        "summary": {
            "total": len(counts),
            "passed": counts.count("passed"),
            "failed": counts.count("failed"),
            "skipped": counts.count("skipped"),
            "errors": counts.count("error"),
            "undecided": counts.count("undecided"),
            "not_run": counts.count("not_run"),
        },
        "results": results,
    }
