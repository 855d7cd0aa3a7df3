"""A start reports its progress each second, can be interrupted, and ends with a sentence where it fails."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import djinn_jupyter as dj
from djinn_jupyter.errors import EngineStartFailed
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import registry_folder, running_engines
from djinn_jupyter.link.waiting import TerminalProgress
from djinn_jupyter.wire.logs import LOG_SUFFIX
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.alone]


def _processes_of(log: Path) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if f"--log={log}" in (p.info["cmdline"] or ())]


def _await_end(log: Path) -> None:
    while _processes_of(log):
        time.sleep(0.01)


def _log() -> Path:
    (log,) = registry_folder().glob(f"*{LOG_SUFFIX}")
    return log


def test_a_process_that_never_begins_ends_with_a_sentence_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger that waits for an editor is such a process; SIGTERM does not reach it."""
    monkeypatch.setenv("FAKE_SITE_HANGS", "1")
    monkeypatch.setattr(starting, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(starting, "END_SECONDS", 0.3)
    seconds: list[str] = []

    def heard(line: str) -> None:
        seconds.append(line)
        if "before it hangs" in _log().read_text():
            monkeypatch.setattr(starting, "BEGIN_SECONDS", 0.0)

    with pytest.raises(EngineStartFailed, match="has not begun within 0 s") as failed:
        dj.load("fake", each_second=heard)
    assert seconds[0] == "starting the engine of fake"
    assert re.fullmatch(r"starting the engine of fake \(\d+ s\)", seconds[-1])
    assert str(_log()) in str(failed.value)
    assert "a last line before it hangs" in str(failed.value)
    _await_end(_log())


def test_a_process_that_gets_nowhere_is_told_of_and_ended(slow_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = threading.Thread(target=(slow_model / "begun").read_text)
    reader.start()
    for name, value in (("TICK_SECONDS", 0.1), ("QUIET_SECONDS", 0.3)):
        monkeypatch.setattr(starting, name, value)
    model, lines, seconds = str(slow_model), [], []

    def heard(line: str) -> None:
        seconds.append(line)
        if not reader.is_alive():  # the engine gets nowhere from here on
            monkeypatch.setattr(starting, "STUCK_SECONDS", 1.0)

    with pytest.raises(
        EngineStartFailed, match=r"neither computed nor read or written anything for 1 s\. Its last lines"
    ):
        dj.load(model, progress=lines.append, each_second=heard)
    reader.join()
    assert lines == [f"loading {model}"]
    assert seconds[-1].startswith(f"loading {model} (")
    assert "its process has computed for" in seconds[-1]
    assert str(_log()) in seconds[-1]
    _await_end(_log())
    assert dj.engines() == ()


def test_who_waits_for_anothers_start_hears_it_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from djinn_jupyter.link import launcher
    from djinn_jupyter.settings import Identity
    from djinn_jupyter.wire.registry import LOCK_SUFFIX

    monkeypatch.setattr(starting, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(launcher, "LOCK_SECONDS", 0.01)
    identity, lines, seconds = Identity(model="fake"), [], []
    with (registry_folder() / f"{identity.slug()}{LOCK_SUFFIX}").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def heard(line: str) -> None:
            seconds.append(line)
            if len(seconds) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dj.load("fake", progress=lines.append, each_second=heard)
    assert lines == ["waiting for fake, which another process is starting"]
    assert len(seconds) == 3
    for said in seconds:
        assert re.fullmatch(r"waiting for fake, which another process is starting \(\d+ s\)", said)


def test_a_terminal_rewrites_one_line_and_a_file_gets_the_steps() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with TerminalProgress(stream) as shown:
            shown.second("starting")
            shown.line("loading demo")
            shown.second("loading demo (1 s)")
            shown.second("loading demo (2 s)")
    assert file.getvalue() == "loading demo\n"
    wiped = f"\r{' ' * 18}\r"
    assert terminal.getvalue() == (
        f"starting\r{' ' * 8}\rloading demo\nloading demo (1 s){wiped}loading demo (2 s){wiped}"
    )


def test_a_child_engine_ends_in_order_with_the_process_that_started_it_however_that_ends() -> None:
    code = (
        "import os, signal; from djinn_jupyter.link.launcher import start_child;"
        "from djinn_jupyter.link.starting import StartCallbacks; from djinn_jupyter.settings import Identity;"
        "told = StartCallbacks(line=lambda line: None, second=lambda line: None);"
        "child = start_child(Identity(model='fake'), ['--model=fake'], told=told);"
        "print(child.entry.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    until(lambda: "Ended. " in _log().read_text(), f"the end of process {parent.stdout}")
    assert "The process that started this engine has gone" in _log().read_text()
    assert running_engines() == ()
