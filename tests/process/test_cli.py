"""The command line: engines, their logs, and an engine of another commit."""

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

import jupyter_core.paths
import msgspec
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter._version import __version__
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli import engines
from djinn_jupyter.errors import DjinnError, EngineUnavailable, MalformedMessage, VersionMismatch
from djinn_jupyter.link import doctor
from djinn_jupyter.link.doctor import findings
from djinn_jupyter.link.registry import FollowedLog, is_alive, log_of, refusal_of, running_engines
from djinn_jupyter.server.link import _refusal
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.logs import rotate
from djinn_jupyter.wire.registry import Entry, decode_entry, encode_entry
from tests.process.served import entry_for, registered
from tests.waiting import SECONDS, until

pytestmark = pytest.mark.usefixtures("fake_site", "forked")


def test_start_list_log_stop(capsys: pytest.CaptureFixture[str]) -> None:
    """A request is found in the log by the id that its error names."""
    assert cli.main(["start", "fake", "--device-memory", "1GiB"]) == 0
    assert capsys.readouterr().out == "Engine fake (Fake, 8 layers, float32 on cpu) runs.\n"
    dj.load("fake").session("trips/paris.ipynb")
    assert cli.main(["list"]) == 0
    head, row, session = capsys.readouterr().out.splitlines()
    assert head.split() == ["MODEL", "DTYPE", "DEVICE", "ATTENTION", "PROCESS", "UP"]
    assert row.split()[:4] == ["fake", "float32", "cpu", "sdpa"]
    assert session == "  paris (idle), 0 tokens"
    assert cli.main(["log", "fake"]) == 0
    assert "Ready: fake" in capsys.readouterr().out
    request = refused_request("trips/paris.ipynb")

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
    assert cli.main(["stop"]) == 0
    assert capsys.readouterr().out == "The engine of fake has ended, and with it the sessions paris.\n"
    assert cli.main(["log"]) == 0  # it outlives the engine
    assert "Ended." in capsys.readouterr().out


def test_what_cannot_be_done_is_one_sentence_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["stop"], "djinn: No engine runs.\n"),
        (["stop", "fake"], "djinn: No engine of fake runs.\n"),
        (["start", "missing"], "djinn: There is no model 'missing' here; try demo.\n"),
        (["start", "fake", "--device-memory", "much"], "djinn: 'much' is no amount of memory; write for example"),
        (["start", "fake", "--stops-kept", "0"], "djinn: --stops-kept is at least 1; it cannot be 0."),
        (["start", "fake", "--threads", "0"], "djinn: --threads is at least 1; it cannot be 0."),
        (["log", "-n", "0"], "djinn: A log has at least one line to show"),
        (["start", "fake", "--log-format=xml"], "djinn: --log-format is text or json; it cannot be 'xml'."),
        (["start", "fake", "--log-level=all"], "djinn: --log-level is debug, info or warning; it cannot be 'all'."),
    ):
        assert cli.main(arguments) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith(sentence.rstrip("\n"))
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == "No engine runs.\n"
    assert cli.main(["stop", "--all"]) == 0


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("lst", "There is no command 'lst'; did you mean list? There are: start, serve, stop,"),
        ("list --al", "There is no option --al."),
        ("stop --frce", "There is no option --frce; did you mean --force? (djinn stop --help)"),
        ("start fake --dvice=cpu", "There is no option --dvice; did you mean --device? (djinn start --help)"),
        ("list everything", "'everything' is one word too many. (djinn list --help)"),
        ("log -n many", "-n/--lines takes a whole number, not 'many'."),
        ("experiment whitebx", "There is no experiment 'whitebx'; did you mean whitebox? There are:"),
    ],
)
def test_what_is_mistyped_is_one_sentence_and_status_2(
    typed: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(typed.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"djinn: {sentence}")


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "djinn_jupyter.cli.main", "experiment", "pressure", "--explain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as djinn:
        djinn.stdout.close()
        assert djinn.stderr.read() == ""
    assert djinn.returncode == 141


def test_one_of_several_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    here = entry_for("ipc:///nowhere/commands")
    other = Identity(model="fake", dtype="bfloat16")
    with registered(here, msgspec.structs.replace(here, identity=other)):
        assert cli.main(["stop"]) == 1
        assert "Several engines run: fake, fake (dtype bfloat16)" in capsys.readouterr().err
        assert [entry.identity for entry in engines.named_or_all("fake (dtype bfloat16)")] == [other]


def test_an_engine_that_does_not_answer_is_ended_with_force(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of an older wire, which then does not answer at all. SIGTERM does not reach it either."""
    entry = dj.load("fake").entry

    def unknown(self: RemoteEngine, **options: bool) -> tuple[str, ...]:
        raise MalformedMessage("Object contains unknown field `forget`.")

    def silent(entry: object) -> None:
        raise EngineUnavailable("it does not answer")

    with monkeypatch.context() as older:
        older.setattr(RemoteEngine, "stop", unknown)
        assert cli.main(["stop"]) == 1
    assert "unknown field `forget`); end its process with `djinn stop --force`." in capsys.readouterr().err
    monkeypatch.setattr("djinn_jupyter.api.loading.attach", silent)
    monkeypatch.setattr(engines, "KILL_SECONDS", 0.5)
    assert cli.main(["stop"]) == 1
    assert is_alive(entry)
    os.kill(entry.pid, signal.SIGSTOP)
    capsys.readouterr()
    assert cli.main(["stop", "--force"]) == 0
    assert not is_alive(entry)
    out, err = capsys.readouterr()
    assert out == "The engine of fake has ended.\n"
    assert f"The engine of fake (process {entry.pid}) could not be asked to end" in err


def test_the_doctor_says_a_sentence_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(findings())
    assert all(line.startswith(("ok ", "note ", "bad ")) and line.endswith(".") for line in lines)
    said = "\n".join(lines)
    words = "Python, torch, transformers, host memory, swap, locked, GB/s, registered in, weights that stream"
    for word in words.split(", "):
        assert word in said


@pytest.mark.parametrize(
    ("enabled", "word"), [({}, "does not load"), ({"djinn_jupyter": True}, "loads"), ({"djinn_jupyter": False}, "not")]
)
def test_the_doctor_says_whether_the_sidebar_has_its_server(
    enabled: dict[str, bool], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(jupyter_core.paths, "ENV_CONFIG_PATH", [])
    monkeypatch.setattr(jupyter_core.paths, "SYSTEM_CONFIG_PATH", [])
    written = json.dumps({"ServerApp": {"jpserver_extensions": enabled}})
    (tmp_path / "jupyter_server_config.json").write_text(written)
    finding = doctor._server()
    assert word in finding.sentence
    assert finding.level == ("ok" if enabled.get("djinn_jupyter") else "bad")


def refused_request(name: str = "paris") -> str:
    """Return the id of a request that an engine has refused."""
    session = dj.load("fake").session(name, fresh=True)
    with pytest.raises(DjinnError) as refused:
        session.resume()
    assert refused.value.request is not None
    return refused.value.request


@contextmanager
def serving(errors: int) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "djinn_jupyter.cli.main", "serve", "fake", "--listen", "tcp://127.0.0.1:*"]
    served = subprocess.Popen([*words, "--log-format", "json"], stdout=subprocess.PIPE, stderr=errors, text=True)
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
        heard: list[str] = []
        reader = threading.Thread(target=lambda: heard.extend(iter(served.stderr.readline, "")))
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
        assert out.buffer.getvalue() == b"\\u4f60 runs\n"


DIFFERENT = f"is of another version of Djinn (both are called {__version__}, but their messages differ)"


def _sentence(entry: Entry) -> str:
    return (
        f"The engine of fake (process {entry.pid}) {DIFFERENT}: end it with `djinn stop --force fake` and load again; "
        "its sessions come back then."
    )


def test_load_and_attach_refuse_it_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor, the server and the list say the same, and the command that it names ends the engine. No request is
    told in a log of the level warning."""
    dj.load("fake", log_level="warning")
    request, (other,) = refused_request(), running_engines()
    loading._channels.close()
    monkeypatch.setattr(protocol, "digest", lambda: "of another commit")
    for meet in (lambda: dj.load("fake"), lambda: dj.attach(other).statistics()):
        with pytest.raises(VersionMismatch) as refused:
            meet()
        assert str(refused.value) == _sentence(other)
    assert _sentence(other) in [finding.sentence for finding in doctor._registry()]
    assert _refusal(other) == _sentence(other)
    assert cli.main(["list"]) == 0
    assert _sentence(other) in capsys.readouterr().out
    assert cli.main(["stop", "fake"]) == 1
    assert DIFFERENT in capsys.readouterr().err
    assert is_alive(other)
    assert cli.main(["stop", "--force", "fake"]) == 0
    assert not is_alive(other)
    assert cli.main(["log", "--request", request]) == 1
    assert cli.main(["log", "-n", "1000"]) == 0
    assert " INFO " not in capsys.readouterr().out


def test_an_entry_from_before_there_was_a_digest_is_of_another_version() -> None:
    fields = msgspec.json.decode(encode_entry(entry_for("ipc:///nowhere/commands")))
    del fields["protocol"]
    old = decode_entry(msgspec.json.encode(fields))
    assert DIFFERENT in str(refusal_of(old))
    unkept = msgspec.structs.replace(old, options=Options(no_journal=True))  # nothing is journalled
    assert str(refusal_of(unkept)).endswith("and load again; its sessions end with it.")
