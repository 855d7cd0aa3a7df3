"""The lines of the log: for people, or one object of JSON each, in which a trace's ids have OpenTelemetry's names
(https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context).

    {"time": "2026-11-26T04:27:30.123456Z", "level": "info", "engine": "demo", "pid": 17, "event": "request.ended",
     "trace_id": "3f2a...", "span_id": "9b1c...", "asked_by": "%djinn_run", "verb": "Run", "person": "anna",
     "session": "anna@main", "outcome": "Paused", "site": "resid_post.4", "seconds": 0.0123, "message": "Run ended..."}

Of an error met for a person with a key the type and the places are told, not the text, which may quote their work.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from typing import Any, Final

from djinn_jupyter.engine.log.logged import LoggedRequest, present
from djinn_jupyter.wire.traces import SHOWN_CHARACTERS

_SPELL: Final = json.JSONEncoder(default=str).encode
_WARNING: Final = {"levelno": logging.WARNING, "levelname": "WARNING"}
WITHHELD: Final = "(its text is the asker's alone)"


def told(event: str, **fields: object) -> dict[str, Any]:
    """Return the `extra` of a line that a program reads: its event, and what is told of it."""
    return {"event": event, "fields": fields}


class Stamp(logging.Filter):
    """Notes on each record the request that its thread is at work on. Let it run where the line is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record)["logged"] = present()
        return True


def spell_lost(count: int) -> str:
    return f"{count} lines of the log were lost here"


class PlainLines(logging.Formatter):
    """`2026-11-26 04:27:30,123 INFO Run began [3f2a9c01 9b1c7d42 Run of %djinn_run, session main]`."""

    spell_lost = staticmethod(spell_lost)

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}{_in_brackets(_logged(record))}"
        return f"{line}\n{_error_of(record)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def __init__(self, engine: str, rank: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, object] = {"engine": engine, "pid": os.getpid()}
        if rank is not None:
            self._process["rank"] = rank

    def spell_lost(self, count: int) -> str:
        """Return the line in place of so many that could not be written."""
        extra = told("lines.lost", lost=count)
        return self.format(logging.makeLogRecord({"name": __name__, "msg": spell_lost(count), **_WARNING, **extra}))

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _in_utc(record.created),
            "level": record.levelname.lower(),
            **self._process,
            "event": getattr(record, "event", "log"),
            **_ids_of(_logged(record)),
            **getattr(record, "fields", {}),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = _error_of(record)
        return _SPELL(line)


def _logged(record: logging.LogRecord) -> LoggedRequest | None:
    found: LoggedRequest | None = getattr(record, "logged", None)
    return found


def _in_brackets(logged: LoggedRequest | None) -> str:
    if logged is None:
        return ""
    trace = logged.trace
    by = f" of {trace.asked_by}" if trace.asked_by else ""
    session = f", session {logged.session}" if logged.session else ""
    person = f", {logged.person}" if logged.person else ""
    ids = f"{trace.trace_id[:SHOWN_CHARACTERS]} {trace.span_id[:SHOWN_CHARACTERS]}"
    return f" [{ids} {logged.verb}{by}{session}{person}]"


def _ids_of(logged: LoggedRequest | None) -> dict[str, object]:
    if logged is None:
        return {}
    trace = logged.trace
    ids = {"trace_id": trace.trace_id, "span_id": trace.span_id, "asked_by": trace.asked_by}
    return {**ids, "verb": logged.verb, "person": logged.person, "session": logged.session}


def _error_of(record: logging.LogRecord) -> str:
    """Return the error of a record with its traceback."""
    assert record.exc_info is not None
    kind, error, trace = record.exc_info
    logged = _logged(record)
    if logged is None or logged.person is None:
        return "".join(traceback.format_exception(kind, error, trace)).rstrip()
    places = "".join(traceback.format_tb(trace))
    return f"Traceback (most recent call last):\n{places}{kind.__name__ if kind else 'error'}: {WITHHELD}"


def _in_utc(seconds: float) -> str:
    whole, part = divmod(round(seconds * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:06}Z"
