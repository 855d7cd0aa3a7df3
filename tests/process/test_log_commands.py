"""The log at the command line: `djinn serve` writes it to standard error, `djinn log --request` finds a request."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.registry import FollowedLog, log_of, running_engines
from djinn_jupyter.wire.logs import rotate
from tests.waiting import SECONDS, until

pytestmark = pytest.mark.usefixtures("fake_site")


def refused_request() -> str:
    """Return the id of a request that an engine has refused."""
    session = dj.load("fake").session("paris", fresh=True)
    with pytest.raises(DjinnError) as refused:
        session.resume()
    assert refused.value.request is not None
    return refused.value.request


def test_a_request_is_found_by_the_id_that_its_error_names(capsys: pytest.CaptureFixture[str]) -> None:
    request = refused_request()

    def shown() -> str:
        cli.main(["log", "--request", request])
        return capsys.readouterr().out

    said = until(lambda: (found := shown()) and "ended" in found and found)
    assert "Resume began" in said
    assert "Resume ended: IllegalMove" in said
    assert all(f"[{request} " in line for line in said.splitlines())
    assert cli.main(["log", "fake", "--request", "0" * 8]) == 1
    assert capsys.readouterr().err.startswith("djinn: No line of a request 00000000 is in ")
    assert cli.main(["log", "fake", "--request", "paris"]) == 1
    assert capsys.readouterr().err == "djinn: A request's id is at least 4 of its digits 0-9 and a-f, as 3f2a9c01.\n"


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--log-format=xml", "djinn: --log-format is text or json; it cannot be 'xml'.\n"),
        ("--log-level=all", "djinn: --log-level is debug, info or warning; it cannot be 'all'.\n"),
    ],
)
def test_an_unknown_form_or_level_is_one_sentence(flag: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["start", "fake", flag]) == 1
    assert capsys.readouterr().err.endswith(sentence)


def test_at_the_level_warning_no_request_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    engine = dj.load("fake", log_level="warning")
    request = refused_request()
    engine.stop(force=True)
    assert cli.main(["log", "--request", request]) == 1
    assert cli.main(["log", "-n", "1000"]) == 0
    assert " INFO " not in capsys.readouterr().out


@contextmanager
def serving(errors: int) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "djinn_jupyter.cli.main", "serve", "fake", "--listen", "tcp://127.0.0.1:*"]
    served = subprocess.Popen([*words, "--log-format", "json"], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert served.stdout is not None
    try:
        while "listens on" not in (line := served.stdout.readline()):
            assert line, "the engine has ended"
        yield served
    finally:
        served.kill()
        served.wait()
        served.stdout.close()


@pytest.mark.processes
def test_serve_writes_the_log_to_standard_error_also_when_it_begins_anew() -> None:
    with serving(subprocess.PIPE) as served:
        assert served.stderr is not None
        heard: list[str] = []
        reader = threading.Thread(target=lambda: heard.extend(iter(served.stderr.readline, "")))  # type: ignore[union-attr]
        reader.start()
        (entry,) = running_engines()
        request = refused_request()
        until(lambda: [line for line in heard if request in line][1:], "the request is told")
        rotate(log_of(entry))
        log_of(entry).touch(0o600)
        with log_of(entry).open("a") as anew:
            anew.write("the new file\n")
        until(lambda: "the new file\n" in heard, "the new file is told")
        served.send_signal(signal.SIGTERM)
        assert served.wait(SECONDS) == 0
        reader.join()
        served.stderr.close()
    told = [json.loads(line) for line in heard if request in line]
    assert [(one["event"], one["engine"], one["verb"]) for one in told] == [
        ("request.began", "fake", "Resume"),
        ("request.ended", "fake", "Resume"),
    ]


@pytest.mark.processes
def test_serve_ends_its_engine_in_order_where_nobody_reads_its_standard_error() -> None:
    reader, writer = os.pipe()
    with serving(writer) as served:
        os.close(writer)
        os.close(reader)
        for _ in range(3):
            refused_request()
        served.send_signal(signal.SIGTERM)
        assert served.wait(SECONDS) == 0
        assert running_engines() == ()


def test_a_closed_standard_error_ends_the_copying_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, written = tmp_path / "fake.log", list[int]()
    path.touch(0o600)
    followed = FollowedLog(path)

    def closed(descriptor: int, piece: bytes) -> int:
        written.append(descriptor)
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", closed)
        for _ in range(3):
            path.write_text(path.read_text() + "a line\n")
            followed.copy()
    followed.close()
    assert written == [2]


def test_what_was_written_before_is_not_copied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fake.log"
    path.write_text("before\n")
    path.chmod(0o600)
    followed = FollowedLog(path)
    with path.open("a") as more:
        more.write("behind\n")
    followed.copy()
    path.unlink()
    followed.copy()  # between two files there is none
    followed.close()
    assert capfd.readouterr().err == "behind\n"


def test_what_an_output_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(options: object) -> int:
        sys.stdout.write("\u4f60 runs\n")
        return 0

    for encoding in ("ascii", "latin-1"):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr("djinn_jupyter.cli.engines._list", said)
        assert cli.main(["list"]) == 0
        assert out.buffer.getvalue() == b"\\u4f60 runs\n"  # type: ignore[attr-defined]
