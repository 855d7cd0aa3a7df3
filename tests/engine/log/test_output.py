"""Where the log goes: bounded on the disk, and no hindrance to who logs, whatever becomes of standard error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from djinn_jupyter.engine.system.log import MOST_AT_ONCE
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.registry import lines_of_request
from djinn_jupyter.wire.logs import OLDER_KEPT, older, with_older
from tests.waiting import SECONDS

PROGRAM = """
import logging, os, sys
from pathlib import Path
from djinn_jupyter.engine.system.log import PlainLines
from djinn_jupyter.engine.system.log import LoggedRequest, WorkingOn
from djinn_jupyter.engine.system.log import QueuedLines, StandardError, trouble
from djinn_jupyter.wire.logs import Trace
log = logging.getLogger("djinn_jupyter")
log.setLevel(logging.INFO)
"""


def logging_program(body: str, *, errors: object, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program that logs to a standard error, and return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(body), *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,  # type: ignore[arg-type]
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_a_log_is_begun_anew_and_takes_no_more_than_its_share_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "demo.log"
    body = """
        queued = QueuedLines(PlainLines(), StandardError(Path(sys.argv[1]), most_bytes=20_000))
        log.addHandler(queued)
        for number in range(4_000):
            with WorkingOn(LoggedRequest(trace=Trace(f"{number:08x}" * 4, "0" * 16), verb="Run")):
                log.info("line %d", number)
            if number % 1000 == 0:
                while not queued.queue.empty():
                    pass
        queued.close()
        os.write(2, b"the last words of a library in C")
    """
    with path.open("ab") as errors:
        done = logging_program(body, errors=errors, arguments=(str(path),))
    assert done.returncode == 0
    files = with_older(path)
    assert files == [older(path, 3), older(path, 2), older(path, 1), path]
    assert len(list(tmp_path.iterdir())) == OLDER_KEPT + 1
    assert all(20_000 <= one.stat().st_size < 20_000 + 100 * MOST_AT_ONCE for one in files[:-1])
    assert path.stat().st_mode & 0o077 == 0
    lines = [line for one in files for line in one.read_text().splitlines()]
    assert lines[-1] == "the last words of a library in C"
    numbers = [int(line.partition(" INFO line ")[2].split()[0]) for line in lines[:-1]]
    assert numbers == list(range(numbers[0], 4_000))  # none is lost between two files
    begins = files[1].read_text().partition(" INFO line ")[2].split()[0]
    (found,) = lines_of_request(files, f"{int(begins):08x}")
    assert f"INFO line {begins} " in found


def test_a_process_beside_goes_on_in_the_file_that_was_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "demo.log"
    body = """
        from djinn_jupyter.wire.logs import rotate
        path = Path(sys.argv[1])
        sink = StandardError(path, rotates=False)
        sink.write(["before"])
        rotate(path)
        sink.write(["while the new one is not there yet"])
        path.touch(mode=0o600)
        sink.write(["behind"])
        sink.write(["in the new one"])
    """
    with path.open("ab") as errors:
        done = logging_program(body, errors=errors, arguments=(str(path),))
    assert done.returncode == 0
    written = [one.read_text().splitlines() for one in (older(path, 1), path)]
    assert [*written[0], *written[1]] == ["before", "while the new one is not there yet", "behind", "in the new one"]
    assert written[1][-1] == "in the new one"
    assert written[0][0] == "before"


@pytest.mark.parametrize("broken", ["full", "closed", "gone"])
def test_who_logs_goes_on_where_nothing_can_be_written_and_the_next_line_says_what_is_lost(
    broken: str, tmp_path: Path
) -> None:
    body = f"""
        queued = QueuedLines(PlainLines(), sink := StandardError())
        log.addHandler(queued)
        kept = os.dup(2)
        if {broken!r} == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        elif {broken!r} == "closed":
            os.close(2)
        else:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, 2)
        for number in range(5):
            log.info("lost")
        while sink.lost < 5:
            pass
        logging.getLogger().addHandler(queued)
        print(trouble())
        logging.getLogger().removeHandler(queued)
        os.dup2(kept, 2)
        log.info("told")
        queued.close()
        print("went on")
    """
    with (tmp_path / "errors").open("ab") as errors:
        done = logging_program(body, errors=errors)
    assert done.stdout == "5 lines of the log could not be written\nwent on\n"
    told = (tmp_path / "errors").read_text().splitlines()
    assert told[0] == "5 lines of the log were lost here"
    assert told[1].endswith("INFO told")
    assert len(told) == 2


def test_who_logs_does_not_wait_for_a_pipe_that_nobody_reads() -> None:
    body = """
        queued = QueuedLines(PlainLines(), sink := StandardError(), most=10)
        log.addHandler(queued)
        for number in range(50_000):
            log.info("line %d", number)
        assert sink.lost > 0
        print("went on", flush=True)
        queued.close()
        print("ended")
    """
    reader, writer = os.pipe()
    try:
        done = logging_program(body, errors=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout == "went on\nended\n"


def test_a_warning_and_the_end_do_not_wait_for_other_lines_and_a_line_says_what_was_so_then(tmp_path: Path) -> None:
    """The lines that wait for others would wait for an hour here."""
    path = tmp_path / "demo.log"
    body = """
        from djinn_jupyter.engine.system import log as output
        output.GATHER_SECONDS, output.CLOSE_SECONDS = 3600.0, 3600.0
        queued = QueuedLines(PlainLines(), StandardError())
        log.addHandler(queued)
        def lines():
            return Path(sys.argv[1]).read_text().splitlines()
        log.info("at once")
        while len(lines()) < 1:
            pass
        changes = [1]
        log.info("with others: %s", changes)
        changes.append(2)
        log.warning("a warning")
        while len(lines()) < 3:
            pass
        log.info("the last")
        queued.close()
        print(len(lines()))
    """
    with path.open("ab") as errors:
        done = logging_program(body, errors=errors, arguments=(str(path),))
    assert done.stdout == "4\n"
    assert [line.partition(" ")[2].partition(" ")[2] for line in path.read_text().splitlines()] == [
        "INFO at once",
        "INFO with others: [1]",
        "WARNING a warning",
        "INFO the last",
    ]


@pytest.mark.parametrize("asked", ["", "3f2", "no id", "3f2a9c01-1", "g" * 8, "0" * 33])
def test_what_is_no_id_is_one_sentence(asked: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is at least 4 of its digits"):
        lines_of_request([tmp_path / "none.log"], asked)


def test_lines_are_found_by_the_request_or_its_trace_with_the_traceback_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "demo.log"
    path.write_text(
        "2026-11-26 04:27:30,123 INFO Run began [3f2a9c01 9b1c7d42 Run of %djinn_run, session main]\n"
        "2026-11-26 04:27:30,124 ERROR A fault [3f2a9c01 9b1c7d42 Run of %djinn_run, session main]\n"
        "Traceback (most recent call last):\n"
        "2026-11-26 04:27:30,125 INFO Inspect began [3f2a9c01 00000001 Inspect of %djinn_run, session [a]]\n"
        "2026-11-26 04:27:30,126 INFO another [3f2a9c02 00000002 Run]\n"
        '{"trace_id": "3f2a9c01aaaaaaaaaaaaaaaaaaaaaaaa", "span_id": "9b1c7d4200000000", "message": "of JSON"}\n'
        '{"trace_id": "3f2a9c01aaaaaaaaaaaaaa'
    )
    lines = path.read_text().splitlines()
    os.chmod(path, 0o600)
    assert lines_of_request([path], "3F2A9C01") == [*lines[:4], lines[5]]
    assert lines_of_request([path], "9b1c7d42") == [*lines[:3], lines[5]]
    assert lines_of_request([path], "3f2a9c01aaaaaaaaaaaaaaaaaaaaaaaa") == [*lines[:4], lines[5]]
    with pytest.raises(UsageError, match=r"No line of a request abcdef is in .*demo\.log"):
        lines_of_request([path], "abcdef")
