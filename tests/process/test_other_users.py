"""A path that others own or may write to is not read, written, connected to or removed; a sentence says what to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter.engine.process.registration import Registration
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link import doctor, launcher
from djinn_jupyter.link.registry import last_lines, log_of, registry_folder, running_engines
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.settings import Identity
from djinn_jupyter.wire.logs import LOG_SUFFIX
from tests.process.served import entry_for

NOBODY = 65534
TOLD = StartCallbacks(line=lambda line: None, second=lambda line: None)
IDENTITY = Identity(model="fake")


def _as_nobody(act: Callable[[], object]) -> str:
    """Return the result of `act`, or its error, as text from a child that is another Unix user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = str(act())
        except DjinnError as error:
            said = f"{error.code}: {error}"
        except BaseException as error:  # noqa: BLE001  told to the parent
            said = f"a traceback of {error!r}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def test_a_folder_that_others_may_write_to_is_refused(runtime: Path) -> None:
    registry_folder().chmod(0o777)
    with pytest.raises(UsageError, match=r"its mode is 777\), so nothing in it can be trusted.*chmod 700"):
        dj.engines()
    assert any("its mode is 777" in finding.sentence for finding in doctor._registry())
    (runtime / "djinn").chmod(0o700)
    assert dj.engines() == ()


def test_a_folder_that_is_a_link_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.mkdir()
    (runtime / "djinn").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link or a file, not a folder: remove it"):
        dj.engines()
    (runtime / "djinn").unlink()


def test_a_folder_that_everybody_may_replace_is_refused(runtime: Path) -> None:
    registry_folder()
    runtime.chmod(0o777)
    with pytest.raises(UsageError, match=f"All users may write to {runtime}"):
        dj.engines()
    runtime.chmod(0o1777)  # as /tmp is: with the sticky bit only owners replace
    assert dj.engines() == ()


def test_a_place_that_can_hold_no_folder_gets_a_sentence(runtime: Path) -> None:
    runtime.write_text("")
    with pytest.raises(UsageError, match=r"cannot be made .*JUPYTER_RUNTIME_DIR"):
        dj.engines()
    runtime.unlink()


@pytest.mark.parametrize("suffix", [LOG_SUFFIX, ".lock"])
def test_a_link_is_not_written_through(runtime: Path, tmp_path: Path, suffix: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    (registry_folder() / f"{IDENTITY.slug()}{suffix}").symlink_to(precious)
    with pytest.raises(UsageError, match=r"cannot be opened .it is a link"):
        dj.load("fake")
    assert precious.read_text() == "years of work"


def test_a_log_elsewhere_or_behind_a_link_is_not_shown(
    runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    registration = Registration(msgspec.structs.replace(entry_for("ipc://x/y"), log=str(secret)))
    assert cli.main(["log", "fake"]) == 1
    said = capsys.readouterr()
    assert "a secret" not in said.out
    assert f"writes to {secret}; read it there" in said.err
    registration.withdraw()
    link = registry_folder() / f"fake{LOG_SUFFIX}"
    link.symlink_to(secret)
    with pytest.raises(UsageError, match="it is a link"):
        last_lines(log_of(msgspec.structs.replace(entry_for("c"), log=str(link))), 5)


if os.geteuid() == 0:  # only root can become another user

    def test_another_users_folder_is_refused_by_root(runtime: Path) -> None:
        os.chown(registry_folder(), NOBODY, NOBODY)
        with pytest.raises(UsageError, match=r"belongs to .*, and this is root: set JUPYTER_RUNTIME_DIR"):
            dj.engines()
        os.chown(runtime / "djinn", 0, 0)

    def test_another_users_entry_is_passed_over(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
        registration = Registration(entry_for("ipc://x/y"))
        os.chown(registration.path, NOBODY, NOBODY)
        assert running_engines() == ()
        assert "is not a file that root owns" in caplog.text
        registration.withdraw()

    def test_who_is_somebody_else_is_refused_and_gets_a_sentence(runtime: Path, tmp_path: Path) -> None:
        for folder in (tmp_path, *tmp_path.parents):
            if stat.S_IMODE(folder.stat().st_mode) & 0o005 != 0o005:
                folder.chmod(0o755)
        folder = registry_folder()
        runtime.chmod(0o755)
        assert _as_nobody(dj.engines).startswith(f"UsageError: {folder} belongs to root, and this is ")

    def test_a_runtime_folder_that_may_only_be_read_gets_a_sentence(runtime: Path, tmp_path: Path) -> None:
        runtime.mkdir(mode=0o755)
        for folder in (tmp_path, *tmp_path.parents):
            if stat.S_IMODE(folder.stat().st_mode) & 0o005 != 0o005:
                folder.chmod(0o755)
        assert _as_nobody(dj.engines) == (
            f"UsageError: The folder {runtime / 'djinn'} cannot be made (permission denied): "
            "set JUPYTER_DATA_DIR to a folder of your own (JUPYTER_RUNTIME_DIR too where it is set, and HF_HOME for "
            "models of the hub)."
        )
        own = runtime / "djinn"
        own.mkdir(mode=0o700)
        os.chown(own, NOBODY, NOBODY)
        own.chmod(0o500)
        assert _as_nobody(dj.engines) == "()"
        said = _as_nobody(lambda: launcher.start(IDENTITY, [], keep_open=(), told=TOLD))
        assert said.startswith(f"UsageError: {own / IDENTITY.slug()}{LOG_SUFFIX} cannot be opened (permission denied)")
        os.chown(own, 0, 0)
        own.chmod(0o700)
