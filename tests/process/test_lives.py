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
from typing import Any, Final

import msgspec
import psutil
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter._version import __version__
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.engine.process import registration
from djinn_jupyter.errors import (
    EngineBroken,
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
from djinn_jupyter.settings import Identity
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, FOLDER, LOCK_SUFFIX
from tests.process.kernels import Kernel
from tests.process.served import entry_for, registered
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.processes]

IDLE_SECONDS = 2.0  # more than passes, on a busy machine, between an engine's being ready and its starter


def _only_entry_path() -> Path:
    (path,) = registry_folder().glob(f"*{ENTRY_SUFFIX}")
    return path


def test_load_starts_an_engine_and_loading_again_attaches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is nobody's child, its files are for its owner, what another environment is like does not matter to it, what
    it was not started with is refused, and stopping it removes every trace."""
    for name, value in ODD.items():
        monkeypatch.setenv(name, value)
    told: list[str] = []
    engine = dj.load("fake", device_memory="1GiB", **LISTENING, progress=told.append)
    entry = engine.entry
    again = dj.load("fake", progress=told.append)
    assert entry == again.entry == dj.engines()[0]
    assert told == ["loading fake"]
    assert engine.channel is again.channel
    heard: list[object] = []
    session = engine.session("paris")
    assert session.run([1], max_new_tokens=2).tokens == (1, 2)
    assert engine.wire_bytes.arrays_received == 0
    session.run([1], max_new_tokens=3, on_token=heard.append)
    assert len(heard) == 3
    assert repr(engine) == "Engine fake (Fake, 8 layers, float32 on cpu)"

    process = psutil.Process(entry.pid)
    assert os.getsid(entry.pid) not in (os.getsid(0), entry.pid)
    assert process.ppid() != os.getpid()
    assert process.cwd() == "/"
    assert not process.environ().keys() & ODD.keys()
    assert process.environ()["PYTHONPATH"] == os.environ["PYTHONPATH"]
    (log,) = registry_folder().glob("*.log")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (registry_folder(), _only_entry_path(), log)}
    assert [*modes.values()] == [0o700, 0o600, 0o600]

    assert cli.main(["list"]) == 0
    assert f"\n  listens on {entry.listens}\n" in capsys.readouterr().out
    for same in ({"device_memory": 2**30}, {"quota": "sessions=20,device=1024MiB"}, LISTENING):
        assert dj.load("fake", **same).entry == entry
    for other, said in REFUSED:
        with pytest.raises(UsageError, match=said):
            dj.load("fake", **other)
    path = _only_entry_path()
    for lose in (path.unlink, lambda: path.write_text("{}")):
        lose()
        while engine.statistics() and not running_engines():
            time.sleep(0.01)
        assert running_engines() == (entry,)

    assert engine.stop() == ("paris",)
    assert dj.engines() == ()
    assert list(registry_folder().glob(f"*{ENTRY_SUFFIX}")) == []
    assert not Path(entry.commands.removeprefix("ipc://")).parent.exists()
    with pytest.raises(EngineUnavailable):
        engine.statistics()


LISTENING: Final[dict[str, Any]] = {"listen": "tcp://127.0.0.1:*", "quota": "device=1GiB,sessions=20"}
REFUSED: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"device_memory": "2GiB"}, "device_memory = 1GiB, not 2GiB"),
    ({"page_positions": 16}, "page_positions"),
    ({"listen": "tcp://127.0.0.1:1"}, r"listens on tcp://127.0.0.1:\d+, not on tcp://127.0.0.1:1: leave --listen out"),
    ({"quota": "sessions=5"}, "runs with the common quota device=1GiB,sessions=20, not with sessions=5"),
    ({"quota": "sessions"}, "'sessions' is no quota"),
)
ODD: Final = {
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


@pytest.mark.alone
@pytest.mark.usefixtures("forked")
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


@pytest.mark.usefixtures("forked")
def test_why_it_did_not_start_is_raised_as_it_was_meant() -> None:
    for model, error, said in (
        ("missing", ModelNotFound, "try demo"),
        ("fault", EngineStartFailed, "ZeroDivisionError: a fault of the engine"),
        ("crash", EngineStartFailed, "a last line before the end"),  # it dies without a word of its own
    ):
        with pytest.raises(error, match=said):
            dj.load(model)
    assert dj.engines() == ()


def test_two_that_load_at_once_start_one_also_where_their_launcher_is_killed(slow_model: Path) -> None:
    begun, go = slow_model / "begun", slow_model / "go"
    code = f"engine = dj.load('{slow_model}', progress=tell)\ntell(engine.entry.pid)\ninput()\n"
    launcher = Kernel(code)
    pid = begun.read_text()  # the engine is loading, the process that started it holds the lock
    launcher.kill()
    both = [Kernel(code), Kernel(code)]
    for kernel in both:
        assert "waiting for" in kernel.heard()
    go.write_text("go")
    for kernel in both:
        assert kernel.heard() == pid
        kernel.go_on()
        kernel.end()


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


@pytest.mark.usefixtures("forked")
def test_another_kernel_shares_the_engine_but_not_the_session() -> None:
    """One that ends lets go, one that restarts takes up, and a forked process is told to load again. At last a signal
    ends the engine in order."""
    engine = dj.load("fake")
    with pytest.raises(UsageError, match=r"listens in a private folder of this machine, not on tcp://127.0.0.1:\*"):
        dj.load("fake", listen="tcp://127.0.0.1:*")
    mine = engine.session("paris")
    other = Kernel(
        """
        import os
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
    assert other.heard() == SessionHeld.__name__
    assert other.heard() == "(1, 2, 3)"
    assert other.heard() == SessionsWouldSuffer.__name__
    assert [other.heard() for _ in range(3)] == ["EngineUnavailable", "2", "2"]
    other.end()
    assert mine.describe().holder is not None

    code = "session = dj.load('fake').session('oslo')\ntell(session.run([1, 99]).site)\ninput()\n"
    first = Kernel(code, holder="kernel-1")
    assert first.heard() == "resid_post.4"
    assert {one.name: one.holder for one in engine.sessions()}["oslo"] == "kernel-1"
    first.process.kill()  # no goodbye: only its name tells the next one
    restarted = Kernel("tell(dj.load('fake').session('oslo').stop.site)\ninput()\n", holder="kernel-1")
    assert restarted.heard() == "resid_post.4"
    restarted.go_on()
    restarted.end()  # with a goodbye
    first.end()
    with pytest.raises(SessionHeld):  # the first one is not known to have gone yet
        engine.session("oslo")
    assert engine.session("oslo", join=True).stop.site == "resid_post.4"

    entry = engine.entry
    os.kill(entry.pid, signal.SIGTERM)
    await_end(entry)
    assert list(registry_folder().glob(f"*{ENTRY_SUFFIX}")) == []
    assert "Ended." in Path(entry.log).read_text()


@pytest.mark.alone
def test_it_ends_by_itself_when_nobody_needs_it_and_not_while_a_session_exists() -> None:
    code = f"engine = dj.load('fake', idle_seconds={IDLE_SECONDS})\nengine.session('paris')\ntell(engine.entry.pid)\n"
    kernel = Kernel(code)
    process = psutil.Process(int(kernel.heard()))
    kernel.end()
    with pytest.raises(psutil.TimeoutExpired):
        process.wait(2 * IDLE_SECONDS)
    dj.load("fake").session("paris", join=True).close()
    loading._channels.close()
    process.wait(120)
    assert dj.engines() == ()


def test_an_engine_of_another_version_is_refused_naming_both() -> None:
    with registered(msgspec.structs.replace(entry_for("ipc:///nowhere/commands"), version="0.0.7")):
        with pytest.raises(VersionMismatch, match=f"0.0.7.*{__version__}"):
            dj.load("fake")


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


# A broken engine begins anew in its process, and a client that loads meanwhile gets it.

BREAKING = [98]


def break_it(engine: RemoteEngine) -> str:
    with pytest.raises((EngineBroken, EngineUnavailable)) as told:
        engine.session("paris").run(BREAKING)
    return str(told.value)


@pytest.mark.usefixtures("forked")
def test_who_loads_while_it_begins_anew_waits_for_it() -> None:
    """Two kernels load in the moment in which no engine can be found."""
    engine = dj.load("fake")
    code = "input(); tell(dj.load('fake').entry.pid)"
    kernels = [Kernel(code), Kernel(code)]
    break_it(engine)
    for kernel in kernels:
        kernel.go_on()
    assert {kernel.heard() for kernel in kernels} == {str(engine.entry.pid)}
    for kernel in kernels:
        kernel.end()


@pytest.mark.usefixtures("forked")
def test_it_begins_anew_so_often_and_then_ends() -> None:
    """Under the same number, with the same log."""
    first = dj.load("fake")
    told = [break_it(dj.load("fake")) for _ in range(registration.MOST)]
    assert "The accounting does not agree." in told[0]
    last = dj.load("fake")
    assert (last.entry.pid, last.entry.log) == (first.entry.pid, first.entry.log)
    assert last.entry.commands != first.entry.commands
    assert dj.engines() == (last.entry,)
    assert last.session("rome").run([1], max_new_tokens=2).tokens == (1, 2)
    break_it(last)
    await_end(last.entry)
    assert dj.load("fake").entry.pid != first.entry.pid  # type: ignore[union-attr]
    (log,) = registry_folder().glob("*.log")
    assert "The accounting does not agree." in log.read_text()


def test_the_options_of_the_first_start_are_left_out_of_the_next() -> None:
    told = ["-P", "-m", "engine", "--model=x", "--launcher-pipe", "7", "--launcher-lock=8", "--log", "y"]
    left = ["-P", "-m", "engine", "--model=x", "--log", "y"]
    assert list(registration._without(told, registration._OF_THE_FIRST_START)) == left


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "jupyter_runtime_dir", lambda: str(tmp_path))
    identity = Identity(model="x", revision=None, dtype="float32", device="cpu", attention=None)
    folder, elsewhere = tmp_path / FOLDER, tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    lock = folder / f"{identity.slug()}{LOCK_SUFFIX}"
    lock.symlink_to(elsewhere)
    restarts = registration.Restarts()
    restarts.hold_lock(identity)
    assert not elsewhere.exists()
    assert restarts._lock is None


def test_restarts_of_long_ago_do_not_count() -> None:
    now = registration.time.monotonic()
    assert registration.Restarts([now - 2 * registration.PERIOD_SECONDS] * 9).allowed
    assert not registration.Restarts([now - 1.0] * registration.MOST).allowed
