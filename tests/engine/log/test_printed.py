"""A log of JSON has an object on each line, whatever else writes to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import SECONDS

PROGRAM = """
import logging, os, sys, threading, time, warnings
from djinn_jupyter.engine.system import log as output
from djinn_jupyter.engine.system.log import LogForm
form = LogForm(form=sys.argv[1], engine="demo", path=sys.argv[2])
log = logging.getLogger("djinn_jupyter.tests")
with output.logging_to_standard_error(form):
"""


def logged(path: Path, body: str, form: str = "json") -> list[str]:
    """Return the lines of the log of a program that logs to a file."""
    with path.open("ab") as file:
        program = PROGRAM + textwrap.indent(textwrap.dedent(body), "    ")
        subprocess.run(
            [sys.executable, "-c", program, form, str(path)], stdout=file, stderr=file, timeout=SECONDS, check=True
        )
    return path.read_text().splitlines()


def objects(path: Path, body: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged(path, body)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "demo.log"
    path.touch(mode=0o600)
    return path


def test_what_is_printed_and_warned_of_is_an_object_too(path: Path) -> None:
    body = """
        print("half a", end="")
        log.info("between")
        print(" line, and", {"a": 1}, "behind")
        warnings.warn("of two\\nlines")
        handler = logging.StreamHandler()  # as transformers has one of its own
        library = logging.getLogger("library")
        library.addHandler(handler)
        library.propagate = False
        library.warning("a library's own")
        sys.stderr.write("\\r 10%\\r100%\\n\\n")
    """
    lines = objects(path, body)
    assert [(line["event"], line["logger"]) for line in lines] == [
        ("log", "djinn_jupyter.tests"),
        ("printed", "stdout"),
        ("log", "py.warnings"),
        ("printed", "stderr"),
        ("printed", "stderr"),
    ]
    said = [line["message"] for line in lines]
    assert said[1] == "half a line, and {'a': 1} behind"
    assert "UserWarning: of two\nlines" in said[2]
    assert said[3:] == ["a library's own", "100%"]


def test_lines_of_several_threads_stay_whole(path: Path) -> None:
    body = """
        def many(name):
            for number in range(200):
                print(name, number)
        threads = [threading.Thread(target=many, args=(name,)) for name in "ab"]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """
    said = sorted(line["message"] for line in objects(path, body))
    assert said == sorted(f"{name} {number}" for name in "ab" for number in range(200))


def test_a_thread_that_ends_by_an_error_breaks_no_line(path: Path) -> None:
    body = """
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    """
    assert "ZeroDivisionError: division by zero" in [line["message"] for line in objects(path, body)]


def test_a_line_begins_behind_half_a_line_of_code_in_c(path: Path) -> None:
    body = """
        log.warning("first")
        while "first" not in open(sys.argv[2]).read():
            pass
        os.write(2, b"half a line")
        log.warning("second")
    """
    first, half, second = logged(path, body)
    assert half == "half a line"
    assert [json.loads(line)["message"] for line in (first, second)] == ["first", "second"]


def test_the_line_that_tells_of_lost_ones_is_an_object(path: Path) -> None:
    body = """
        kept = os.dup(2)
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        sink = logging.getLogger().handlers[0]._sink
        log.warning("lost")
        while not sink.lost:
            pass
        os.dup2(kept, 2)
        log.warning("told")
    """
    lost, told = objects(path, body)
    assert (lost["event"], lost["lost"], lost["level"], lost["engine"]) == ("lines.lost", 1, "warning", "demo")
    assert told["message"] == "told"


def test_lines_for_people_have_what_is_printed_as_it_is(path: Path) -> None:
    assert logged(path, "print('as it is')", form="text") == ["as it is"]
    assert os.stat(path).st_mode & 0o077 == 0
