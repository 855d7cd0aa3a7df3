"""An engine starts the same under any watcher of the process that asks: debugger, profiler, coverage, environments."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

import djinn_jupyter as dj
from djinn_jupyter.link import starting
from tests.process.kernels import Kernel

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.processes]

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
    assert engine.entry is not None
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
