"""The lines of the log: what they say of a request, and what they withhold."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from djinn_jupyter.engine.system.log import JsonLines, LoggedRequest, PlainLines, WorkingOn, told
from djinn_jupyter.wire.logs import Trace

TRACE = Trace("3f2a9c01" * 4, "9b1c7d42" * 2, "%djinn_run")
RUN = LoggedRequest(trace=TRACE, verb="Run", person="anna", session="anna@main")
SECRET = "a secret of the prompt"


class Written(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    made = logging.Logger("djinn_jupyter.tests")
    yield made
    made.handlers.clear()


def test_a_line_of_json_has_the_ids_and_the_fields_of_its_request(log: logging.Logger) -> None:
    written = Written(JsonLines("demo"))
    log.addHandler(written)
    with WorkingOn(RUN):
        log.info("%s ended", "Run", extra=told("request.ended", outcome="Paused", seconds=0.5))
    log.info("no request")
    first, second = (json.loads(line) for line in written.lines)
    assert {name: first[name] for name in ("level", "engine", "event", "verb", "person", "session")} == {
        "level": "info", "engine": "demo", "event": "request.ended", "verb": "Run", "person": "anna",
        "session": "anna@main",
    }  # fmt: skip
    assert (first["trace_id"], first["span_id"], first["asked_by"]) == (TRACE.trace_id, TRACE.span_id, "%djinn_run")
    assert (first["outcome"], first["seconds"], first["message"]) == ("Paused", 0.5, "Run ended")
    assert first["time"].endswith("Z")
    assert second["message"] == "no request"
    assert "trace_id" not in second


def test_a_line_of_another_rank_names_it(log: logging.Logger) -> None:
    for written in (beside := Written(JsonLines("demo", rank=1)), own := Written(JsonLines("demo"))):
        log.addHandler(written)
    log.info("a line")
    assert json.loads(beside.lines[0])["rank"] == 1
    assert "rank" not in json.loads(own.lines[0])


def test_a_line_for_people_ends_in_its_request(log: logging.Logger) -> None:
    written = Written(PlainLines())
    log.addHandler(written)
    with WorkingOn(RUN):
        log.info("Run began")
    log.info("no request")
    assert written.lines[0].endswith("INFO Run began [3f2a9c01 9b1c7d42 Run of %djinn_run, session anna@main, anna]")
    assert written.lines[1].endswith("INFO no request")


@pytest.mark.parametrize("formatter", [PlainLines(), JsonLines("demo")], ids=["text", "json"])
def test_the_text_of_an_error_of_a_person_is_not_told_but_where_it_was(
    log: logging.Logger, formatter: logging.Formatter
) -> None:
    written = Written(formatter)
    log.addHandler(written)
    own = LoggedRequest(trace=TRACE, verb="Run")
    for asked in (RUN, own):
        with WorkingOn(asked):
            try:
                _raise()
            except ValueError:
                log.exception("A request met an error")
    of_person, of_the_engines_user = written.lines
    assert SECRET not in of_person
    assert "ValueError" in of_person
    assert "in _raise" in of_person
    assert SECRET in of_the_engines_user


def _raise() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(SECRET) from error


def test_a_line_is_of_the_innermost_request_and_then_of_the_outer_again(log: logging.Logger) -> None:
    written = Written(JsonLines("demo"))
    log.addHandler(written)
    with WorkingOn(RUN):
        with WorkingOn(None):
            log.info("inner")
        log.info("outer")
    assert [json.loads(line).get("person") for line in written.lines] == [None, "anna"]
