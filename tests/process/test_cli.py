from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jupyter_core.paths
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli import engines
from djinn_jupyter.errors import EngineUnavailable, MalformedMessage
from djinn_jupyter.link import doctor
from djinn_jupyter.link.doctor import findings
from djinn_jupyter.link.registry import is_alive

pytestmark = pytest.mark.usefixtures("fake_site")


def test_start_list_log_stop(capsys: pytest.CaptureFixture[str]) -> None:
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
        assert djinn.stdout is not None
        djinn.stdout.close()
        assert djinn.stderr is not None
        assert djinn.stderr.read() == ""
    assert djinn.returncode == 141


def test_one_of_several_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    dj.load("fake")
    dj.load("fake", dtype="bfloat16")
    assert cli.main(["stop"]) == 1
    assert "Several engines run: fake, fake (dtype bfloat16)" in capsys.readouterr().err
    assert cli.main(["stop", "fake (dtype bfloat16)"]) == 0
    assert cli.main(["stop", "fake"]) == 0


def test_an_engine_that_does_not_answer_is_ended_with_force(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dj.load("fake").entry
    assert entry is not None

    def silent(entry: object) -> None:
        raise EngineUnavailable("it does not answer")

    monkeypatch.setattr("djinn_jupyter.api.loading.attach", silent)
    monkeypatch.setattr(engines, "KILL_SECONDS", 0.5)
    assert cli.main(["stop"]) == 1
    assert is_alive(entry)
    os.kill(entry.pid, signal.SIGSTOP)  # not even SIGTERM reaches it now
    assert cli.main(["stop", "--force"]) == 0
    assert not is_alive(entry)


def test_an_engine_of_an_older_wire_is_ended_with_force(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = dj.load("fake").entry
    assert entry is not None

    def unknown(self: RemoteEngine, **options: bool) -> tuple[str, ...]:
        raise MalformedMessage("Object contains unknown field `forget`.")

    monkeypatch.setattr(RemoteEngine, "stop", unknown)
    assert cli.main(["stop"]) == 1
    assert "unknown field `forget`); end its process with `djinn stop --force`." in capsys.readouterr().err
    assert is_alive(entry)
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
