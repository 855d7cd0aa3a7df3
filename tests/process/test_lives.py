"""Engine processes are started, adopted, watched, broken, killed and ended. Processes and sockets are real, the
engine is the fake."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter._version import __version__
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.errors import (
    EngineStartFailed,
    EngineUnavailable,
    ModelNotFound,
    SessionHeld,
    SessionsWouldSuffer,
    UsageError,
    VersionMismatch,
)
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import registry_folder, running_engines
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, encode_entry
from tests.process.kernels import Kernel
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.processes]

IDLE_SECONDS = 2.0  # more than passes, on a busy machine, between an engine's being ready and its starter


def _only_entry_path() -> Path:
    (path,) = registry_folder().glob(f"*{ENTRY_SUFFIX}")
    return path


def test_load_starts_an_engine_and_loading_again_attaches() -> None:
    told: list[str] = []
    engine = dj.load("fake", progress=told.append)
    again = dj.load("fake", progress=told.append)
    assert engine.entry == again.entry == dj.engines()[0]
    assert told == ["loading fake"]
    assert engine.channel is again.channel
    assert engine.session("paris").run([1], max_new_tokens=2).tokens == (1, 2)
    assert engine.wire_bytes.arrays_received == 0
    assert repr(engine) == "Engine fake (Fake, 8 layers, float32 on cpu)"


def test_the_engine_is_nobodys_child_in_a_session_of_its_own() -> None:
    entry = dj.load("fake").entry
    assert os.getsid(entry.pid) not in (os.getsid(0), entry.pid)
    process = psutil.Process(entry.pid)
    assert process.ppid() != os.getpid()
    assert process.cwd() == "/"


def test_the_entry_is_for_its_owner_only() -> None:
    dj.load("fake")
    assert stat.S_IMODE(_only_entry_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(registry_folder().stat().st_mode) == 0o700
    (log,) = registry_folder().glob("*.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_stopping_removes_every_trace() -> None:
    engine = dj.load("fake")
    entry = engine.entry
    assert engine.stop() == ()
    assert dj.engines() == ()
    assert list(registry_folder().glob(f"*{ENTRY_SUFFIX}")) == []
    assert not Path(entry.commands.removeprefix("ipc://")).parent.exists()
    with pytest.raises(EngineUnavailable):
        engine.statistics()
    assert dj.load("fake").statistics().sessions == 0


def test_sigterm_ends_it_in_order() -> None:
    entry = dj.load("fake").entry
    os.kill(entry.pid, signal.SIGTERM)
    await_end(entry)
    assert list(registry_folder().glob(f"*{ENTRY_SUFFIX}")) == []
    assert "Ended." in Path(entry.log).read_text()


@pytest.mark.alone
def test_a_killed_engine_is_noticed_at_once_and_the_next_load_starts_anew() -> None:
    engine = dj.load("fake")
    session = engine.session("paris")
    pid, killed = engine.entry.pid, []

    def kill(event: object) -> None:
        if not killed:
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(EngineUnavailable, match="it has kept come back with it; see its log with `%djinn_log`"):
        session.run([1], max_new_tokens=10_000_000, on_token=kill)
    assert time.monotonic() - killed[0] < 5
    with pytest.raises(EngineUnavailable, match="has ended"):
        session.describe()
    new = dj.load("fake")
    assert new.entry.pid != engine.entry.pid
    assert new.session("paris").run([1], max_new_tokens=1).tokens == (1,)
    folder = Path(engine.entry.commands.removeprefix("ipc://")).parent
    until(lambda: running_engines() == (new.entry,) and not folder.exists(), "the look that clears away what it left")
    assert len(list(registry_folder().glob(f"*{ENTRY_SUFFIX}"))) == 1


def test_why_it_did_not_start_is_raised_as_it_was_meant() -> None:
    with pytest.raises(ModelNotFound, match="try demo"):
        dj.load("missing")
    with pytest.raises(EngineStartFailed, match="ZeroDivisionError: a fault of the engine"):
        dj.load("fault")
    assert dj.engines() == ()


def test_an_engine_that_dies_without_a_word_leaves_its_last_lines() -> None:
    with pytest.raises(EngineStartFailed, match="a last line before the end"):
        dj.load("crash")


def test_two_that_load_at_once_start_one(slow_model: Path) -> None:
    begun, go = slow_model / "begun", slow_model / "go"
    code = f"engine = dj.load('{slow_model}', progress=tell)\ntell(engine.entry.pid)\ninput()\n"
    first = Kernel(code)
    pid = begun.read_text()  # the engine is loading, the process that started it holds the lock
    second = Kernel(code)
    assert "waiting for" in second.heard()
    go.write_text("go")
    assert first.heard() == f"loading {slow_model}"
    assert first.heard() == second.heard() == pid
    for kernel in (first, second):
        kernel.go_on()
        kernel.end()


def test_a_launcher_that_is_killed_does_not_lead_to_two_engines(slow_model: Path) -> None:
    begun, go = slow_model / "begun", slow_model / "go"
    code = f"engine = dj.load('{slow_model}', progress=tell)\ntell(engine.entry.pid)\ninput()\n"
    first = Kernel(code)
    pid = begun.read_text()
    first.kill()
    second = Kernel(code)
    assert "waiting for" in second.heard()
    go.write_text("go")
    assert second.heard() == pid
    second.go_on()
    second.end()


def test_a_load_that_is_interrupted_ends_what_it_started(slow_model: Path) -> None:
    begun = slow_model / "begun"
    kernel = Kernel(
        f"""
        try:
            dj.load("{slow_model}", progress=tell)
        except KeyboardInterrupt:
            tell("interrupted")
        """
    )
    process = psutil.Process(int(begun.read_text()))
    assert kernel.heard().startswith("loading")
    kernel.process.send_signal(signal.SIGINT)
    assert kernel.heard() == "interrupted"
    process.wait(120)
    kernel.end()
    assert dj.engines() == ()


def test_another_kernel_shares_the_engine_but_not_the_session() -> None:
    mine = dj.load("fake").session("paris")
    other = Kernel(
        """
        engine = dj.load("fake")
        try:
            engine.session("paris")
        except dj.DjinnError as error:
            tell(error.code)
        tell(engine.session("rome").run([1], max_new_tokens=3).tokens)
        try:
            engine.stop()
        except dj.DjinnError as error:
            tell(error.code)
        """
    )
    assert other.heard() == SessionHeld.__name__
    assert other.heard() == "(1, 2, 3)"
    assert other.heard() == SessionsWouldSuffer.__name__
    other.end()
    assert mine.describe().holder is not None


def test_a_kernel_that_ends_lets_go_and_one_that_restarts_takes_up() -> None:
    engine = dj.load("fake")
    code = "session = dj.load('fake').session('paris')\ntell(session.run([1, 99]).site)\ninput()\n"
    first = Kernel(code, holder="kernel-1")
    assert first.heard() == "resid_post.4"
    holders = {one.name: one.holder for one in engine.sessions()}
    assert holders == {"paris": "kernel-1"}
    first.process.kill()  # no goodbye: only its name tells the next one
    restarted = Kernel("tell(dj.load('fake').session('paris').stop.site)\ninput()\n", holder="kernel-1")
    assert restarted.heard() == "resid_post.4"
    restarted.go_on()
    restarted.end()  # with a goodbye
    first.end()
    with pytest.raises(SessionHeld):  # the first one is not known to have gone yet
        engine.session("paris")
    assert engine.session("paris", join=True).stop.site == "resid_post.4"


@pytest.mark.alone
def test_it_ends_by_itself_when_nobody_needs_it() -> None:
    code = f"engine = dj.load('fake', idle_seconds={IDLE_SECONDS})\ntell(engine.entry.pid)\n"
    kernel = Kernel(code)
    pid = int(kernel.heard())
    process = psutil.Process(pid)
    kernel.end()
    process.wait(120)
    assert dj.engines() == ()


@pytest.mark.alone
def test_it_does_not_end_while_a_session_exists() -> None:
    code = f"engine = dj.load('fake', idle_seconds={IDLE_SECONDS})\nengine.session('paris')\ntell(engine.entry.pid)\n"
    kernel = Kernel(code)
    process = psutil.Process(int(kernel.heard()))
    kernel.end()
    with pytest.raises(psutil.TimeoutExpired):
        process.wait(2 * IDLE_SECONDS)


def test_options_that_the_running_engine_does_not_have_are_refused() -> None:
    dj.load("fake", device_memory="1GiB")
    assert dj.load("fake").entry is not None
    dj.load("fake", device_memory=2**30)
    with pytest.raises(UsageError, match="device_memory = 1GiB, not 2GiB"):
        dj.load("fake", device_memory="2GiB")
    with pytest.raises(UsageError, match="page_positions"):
        dj.load("fake", page_positions=16)


def test_an_engine_of_another_version_is_refused_naming_both() -> None:
    dj.load("fake")
    path = _only_entry_path()
    (entry,) = running_engines()
    os.kill(entry.pid, signal.SIGSTOP)  # it would put its entry back
    path.write_bytes(encode_entry(msgspec.structs.replace(entry, version="0.0.7")))
    with pytest.raises(VersionMismatch, match=f"0.0.7.*{__version__}"):
        dj.load("fake")
    os.kill(entry.pid, signal.SIGCONT)


def test_an_engine_whose_entry_was_deleted_or_overwritten_is_found_again() -> None:
    engine = dj.load("fake")
    entry, path = engine.entry, _only_entry_path()
    for lose in (path.unlink, lambda: path.write_text("{}")):
        lose()
        while engine.statistics() and not running_engines():
            time.sleep(0.01)
        assert running_engines() == (entry,)


def test_over_tcp_with_keys(capsys: pytest.CaptureFixture[str]) -> None:
    engine = dj.load("fake", listen="tcp://127.0.0.1:*")
    assert engine.entry.listens.startswith("tcp://127.0.0.1:")
    heard: list[object] = []
    engine.session("paris").run([1], max_new_tokens=3, on_token=heard.append)
    assert len(heard) == 3
    assert dj.load("fake", listen="tcp://127.0.0.1:*").entry == engine.entry
    assert cli.main(["list"]) == 0
    assert f"\n  listens on {engine.entry.listens}\n" in capsys.readouterr().out
    with pytest.raises(
        UsageError, match=r"listens on tcp://127.0.0.1:\d+, not on tcp://127.0.0.1:1: leave --listen out"
    ):
        dj.load("fake", listen="tcp://127.0.0.1:1")


def test_a_quota_that_the_running_engine_does_not_hold_persons_to_is_refused() -> None:
    engine = dj.load("fake", listen="tcp://127.0.0.1:*", quota="device=1GiB,sessions=20")
    for same in ("sessions=20,device=1024MiB", None):
        assert dj.load("fake", listen="tcp://127.0.0.1:*", quota=same).entry == engine.entry
    with pytest.raises(
        UsageError, match=r"runs with the common quota device=1GiB,sessions=20, not with sessions=5: leave --quota out"
    ):
        dj.load("fake", quota="sessions=5")
    with pytest.raises(UsageError, match="'sessions' is no quota"):
        dj.load("fake", quota="sessions")


def test_an_address_that_the_running_engine_does_not_listen_on_is_refused() -> None:
    dj.load("fake")
    with pytest.raises(UsageError, match=r"listens in a private folder of this machine, not on tcp://127.0.0.1:\*"):
        dj.load("fake", listen="tcp://127.0.0.1:*")


def test_a_forked_process_is_told_to_load_again() -> None:
    kernel = Kernel(
        """
        import os
        engine = dj.load("fake")
        child = os.fork()
        if child == 0:
            try:
                engine.statistics()
            except dj.DjinnError as error:
                tell(error.code)
            tell(dj.load("fake").statistics().sessions)
            os._exit(0)
        os.waitpid(child, 0)
        tell(engine.statistics().sessions)
        """
    )
    assert [kernel.heard() for _ in range(3)] == ["EngineUnavailable", "0", "0"]
    kernel.end()


UNDER_DEBUGPY = """
import sys
import debugpy
debugpy.listen(("127.0.0.1", 0))
from _pydev_bundle import pydev_monkey
tell(any("pydevd" in word for word in pydev_monkey.patch_args([sys.executable, "-m", "this"])))
engine = dj.load('fake')
tell(engine.session('paris').run([1], max_new_tokens=2).tokens)
"""


def test_under_debugpy_which_rewrites_command_lines_of_python() -> None:
    """debugpy, as JupyterLab's bug icon starts it in a kernel, and proof that it is in force."""
    kernel = Kernel(UNDER_DEBUGPY)
    assert kernel.heard() == "True"
    assert kernel.heard() == "(1, 2)"
    (entry,) = dj.engines()
    assert not [word for word in psutil.Process(entry.pid).cmdline() if "pydevd" in word]
    kernel.end()


ODD = {
    "COVERAGE_PROCESS_START": "/nowhere/coveragerc",
    "PYTHONSTARTUP": "/nowhere/startup.py",
    "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONOPTIMIZE": "2",
    "PYTHONPROFILEIMPORTTIME": "1",
    "PYTHONVERBOSE": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONTRACEMALLOC": "5",
    "PYTHONHOME": "/nowhere",
    "PYTHONEXECUTABLE": "/nowhere/python",
}


def test_with_all_that_changes_how_python_runs_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ODD.items():
        monkeypatch.setenv(name, value)
    engine = dj.load("fake")
    found = psutil.Process(engine.entry.pid).environ()
    assert not found.keys() & ODD.keys()
    assert found["PYTHONPATH"] == os.environ["PYTHONPATH"]
    assert engine.session("paris").run([1], max_new_tokens=2).tokens == (1, 2)


@pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-s"]], ids=" ".join)
def test_a_kernel_that_ignores_its_environment_has_engines_that_do(flags: list[str]) -> None:
    """A package that lies beside the code and that PYTHONPATH may not name is found."""
    code = f"""
        import sys
        sys.path.insert(0, {starting.package_root()!r})
        from djinn_jupyter.link import starting as interpreter
        import subprocess
        command = interpreter.command("import djinn_jupyter; print(sys.flags[:], djinn_jupyter.__file__)")
        asked = subprocess.run(command, env=interpreter.environment(), capture_output=True, text=True, cwd="/")
        print(asked.stdout, asked.stderr)
        """
    found = subprocess.run([sys.executable, *flags, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert str(Path(starting.package_root()) / "djinn_jupyter" / "__init__.py") in found.stdout, found.stderr


def test_a_home_that_is_this_pythons_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    assert starting.environment()["PYTHONHOME"] == sys.base_prefix


def test_what_belongs_to_the_kernel_alone_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JPY_PARENT_PID", "JPY_SESSION_NAME", "MPLBACKEND", "DEBUGPY_RUNNING", "PYDEVD_USE_FRAME_EVAL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    assert not {name for name in starting.environment() if name.startswith(("JPY_", "MPL", "DEBUGPY", "PYDEVD"))}
    assert starting.environment()["CONDA_PREFIX"] == "/opt/conda"


def test_a_folder_is_the_same_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "HF_HOME", "HF_HUB_CACHE", "XDG_DATA_HOME", "TMPDIR"):
        monkeypatch.setenv(name, "here")
        assert starting.environment()[name] == str(tmp_path / "here")
    for name, value in (("JUPYTER_DATA_DIR", ""), ("HF_HOME", "~/.cache"), ("HF_TOKEN", "here")):
        monkeypatch.setenv(name, value)
        assert starting.environment()[name] == value


def test_without_a_python_to_name_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(dj.DjinnError, match=r"sys.executable is empty.*djinn start MODEL"):
        dj.load("fake")
