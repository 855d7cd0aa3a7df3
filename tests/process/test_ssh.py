"""An engine on another machine that only ssh reaches: a real sshd on loopback, with keys and a HOME of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.timing import checkpoint_cost
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import EngineUnavailable, KeyRefused, ModelNotFound, UsageError, VersionMismatch
from djinn_jupyter.link.registry import is_alive, read_entry
from djinn_jupyter.remote import route
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.ssh import read_place
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, Entry
from tests.evaluation.test_afar import COST
from tests.process.sshd import Sshd, sshd

ROOT = Path(__file__).parents[2]
FAKE_SITE = Path(__file__).parent / "fake_site"
AT = "ssh://box"
pytestmark = pytest.mark.processes


def far_folders(home: Path) -> dict[str, str]:
    return {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("DATA", "RUNTIME", "CONFIG")}


def is_tunnel(process: psutil.Process) -> bool:
    """Return whether a process forwards a socket through ssh. One that has ended meanwhile does not."""
    try:
        return "LocalForward" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def far_entries(box: Sshd) -> list[Entry]:
    """The entries that engines of the far side wrote."""
    found = (read_entry(path) for path in (box.home / "runtime" / "djinn").glob(f"*{ENTRY_SUFFIX}"))
    return [entry for entry in found if entry is not None and is_alive(entry)]


@pytest.fixture
def box(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """Another machine, whose engines are in memory. `ssh` on the path reaches it as `box`."""
    environment = {"PYTHONPATH": os.pathsep.join([str(FAKE_SITE), str(ROOT)]), **far_folders(tmp_path / "box" / "home")}
    with sshd(tmp_path / "box", environment) as server:
        monkeypatch.setenv("PATH", str(server.bin), prepend=os.pathsep)
        yield server
        loading._channels.close()
        for entry in far_entries(server):
            os.kill(entry.pid, signal.SIGKILL)


def test_an_engine_is_started_through_ssh_found_again_and_ended(box: Sshd) -> None:
    steps: list[str] = []
    engine = dj.load("fake", at=AT, stops_kept=9, progress=steps.append)
    (there,) = far_entries(box)
    assert (there.identity.model, there.options.stops_kept) == ("fake", 9)
    assert "loading fake" in steps
    assert dj.engines() == ()  # it is none of this machine's
    session = engine.session("paris")
    assert session.run("a b", max_new_tokens=3)
    assert dj.connect(AT).channel is engine.channel
    (tunnel,) = filter(is_tunnel, psutil.Process().children(recursive=True))
    (forward,) = (word for word in tunnel.cmdline() if word.startswith("LocalForward="))
    folder = Path(forward.removeprefix("LocalForward=").split()[0]).parent
    assert folder.stat().st_mode & 0o77 == 0
    engine.stop(force=True)
    assert far_entries(box) == []
    assert dj.load("fake", at=AT).description.name == "fake"  # another one
    loading._channels.close()  # no login and no folder outlives the client
    assert not tunnel.is_running()
    assert not folder.exists()


def test_a_lost_login_is_a_lost_line_and_comes_back_by_another(box: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ended meanwhile is told in one sentence."""
    monkeypatch.setattr(route.Tunnel, "again_seconds", 0.05)
    engine = dj.load("fake", at=AT)
    session, heard = engine.session("paris"), list[object]()
    cut = threading.Event()

    def hear(token: object) -> None:
        heard.append(token)
        if len(heard) == 5:
            box.cut()
            cut.set()

    runner = threading.Thread(target=lambda: session.run("a b", max_new_tokens=3000, on_token=hear))
    runner.start()
    cut.wait()  # sshd has gone, so that another can have its port
    while engine.channel.down_since is None:
        assert far_entries(box)
    box.start()
    runner.join()
    assert len(heard) == 3000
    assert engine.channel.down_since is None
    (there,) = far_entries(box)
    os.kill(there.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match=r"^The engine at ssh://box has ended; load it again, and the sessions"):
        _pinged_until_it_fails(engine)


def test_a_way_is_closed_once_where_two_threads_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for a login closes the way too as that ends, here while the other is closing it."""
    afar = entry_at(read_address("box"), None)
    way = route.Tunnel(msgspec.structs.replace(afar, commands=f"{AT}/tmp/commands"))
    folder, remove = route._Folder(), shutil.rmtree
    way._folder = folder

    def removed(path: Path, **how: bool) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        remove(path, **how)
        way.close()

    monkeypatch.setattr(shutil, "rmtree", removed)
    way.close()  # else a descriptor is closed twice
    assert not folder.socket.parent.exists()


def _pinged_until_it_fails(engine: RemoteEngine) -> None:
    while True:
        engine.ping()


def _no_ssh(box: Sshd) -> None:
    os.environ["PATH"] = str(box.far)


def _no_djinn(box: Sshd) -> None:
    (box.far / "djinn").unlink()


def _older(box: Sshd) -> None:
    box.install("djinn", "echo \"djinn: There is no command 'entry'.\" >&2; exit 2")


def _other(box: Sshd) -> None:
    script = "import sys; from djinn_jupyter import _version; _version.__version__ = '9.9'; sys.argv[0] = 'djinn'; "
    run = "from djinn_jupyter.cli.main import main; sys.exit(main())"
    box.install("djinn", f'exec {sys.executable} -c "{script}{run}" "$@"')


def _unknown_host(box: Sshd) -> None:
    box.know((box.folder / "stranger.pub").read_text())


def _well_again(box: Sshd) -> None:
    box.install("djinn", f'exec {sys.executable} -m djinn_jupyter.cli.main "$@"')
    box.know((box.folder / "host.pub").read_text())
    box.come_as("user")


FAILURES = {
    "no ssh": (_no_ssh, EngineUnavailable, "There is no `ssh` on this machine: install"),
    "no djinn": (_no_djinn, EngineUnavailable, "There is no `djinn` that ssh finds on box: install"),
    "older": (_older, VersionMismatch, "Djinn on box is of another version"),
    "other": (_other, VersionMismatch, r"of another version \(9\.9 there, "),
    "host key": (_unknown_host, KeyRefused, "ssh does not know the key of box, or knows another: connect once by"),
    "login": (lambda box: box.come_as("stranger"), KeyRefused, "box does not let you in without a password"),
    "silent": (Sshd.cut, EngineUnavailable, r"ssh does not reach box \(.*Connection refused\)\."),
}


def test_each_failure_is_one_sentence(box: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    for trouble, (make, error, sentence) in FAILURES.items():
        with monkeypatch.context() as patch:
            patch.setenv("PATH", os.environ["PATH"])
            make(box)
            with pytest.raises(error, match=sentence) as found:
                dj.load("fake", at=AT)
        assert "\n" not in str(found.value), trouble
        assert far_entries(box) == []
        _well_again(box)


def test_what_cannot_be_asked_for_is_said_by_the_far_side(box: Sshd) -> None:
    with pytest.raises(UsageError, match=r"^No engine of yours runs on .*: name a model"):
        dj.connect(AT)
    with pytest.raises(ModelNotFound, match="There is no model 'missing' here"):
        dj.load("missing", at=AT)
    with pytest.raises(UsageError, match="Through ssh the keys are ssh's own"):
        dj.load("fake", at=AT, key="anna")
    program = shutil.move(box.far / "djinn", box.far / "elsewhere")
    assert dj.load("fake", at=f"{AT}{program}").description.name == "fake"


@pytest.mark.parametrize("text", ["ssh://", "ssh://-oProxyCommand=x", "ssh://box:x", "ssh://a b"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no place that ssh knows"):
        read_place(text)


def test_a_place_is_a_login_and_a_path() -> None:
    place = read_place("ssh://anna@gpu-box:22/opt/venv/bin/djinn")
    assert (place.login, place.host, place.path) == ("ssh://anna@gpu-box:22", "gpu-box", "/opt/venv/bin/djinn")
    assert read_place("ssh://gpu-box/").path is None


@pytest.mark.slow
def test_an_experiment_measures_an_engine_through_ssh(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"PYTHONPATH": str(ROOT), **far_folders(tmp_path / "box" / "home")}
    with sshd(tmp_path / "box", environment) as box:
        monkeypatch.setenv("PATH", str(box.bin), prepend=os.pathsep)
        engine = dj.load("demo", at=AT, page_positions=16, threads=1, device="cpu")
        chosen = [word for setting in COST for word in ("--set", setting)]
        there = ["--server", AT, "--output-dir", str(tmp_path / "found")]
        assert cli.main(["experiment", "checkpoint-cost", "--profile", "small", *there, *chosen]) == UNDECIDED
        found = json.loads((tmp_path / "found" / checkpoint_cost.FILE).read_text())
        assert found["neighbour_tokens_per_s"]["alone"] > 0
        assert "the link of its machine is not seen from here" in found["reasons"]["link"]
        assert found["reached_over_a_line"]["round_trip_ms"] > 0
        assert engine.sessions() == ()
        loading._channels.close()
        for entry in far_entries(box):
            os.kill(entry.pid, signal.SIGTERM)
