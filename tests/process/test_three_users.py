"""Three Unix users of one machine: root serves an engine, anna and bert work at it, each by a key of their own. What
one has on the disk no other can open, and what one does in the engine no other hears of."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.wire.keys import PREFIX
from tests.process.unix_user import UnixUser
from tests.waiting import until

pytestmark = pytest.mark.processes
ANNA, BERT = 65541, 65542
KEY = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
PROMPTS = {"anna": "The capital of France is", "bert": "The capital of Italy is"}
WORK = """
engine = dj.connect("tcp://{at}")
session = engine.session("main", fresh=True)
session.breakpoint("resid_post.4")
stop = session.run("{prompt}", max_new_tokens=3)
print(stop.hidden.tobytes().hex(), end="")
"""

if os.geteuid() == 0:  # only root can become another user

    @pytest.fixture
    def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A folder that all users may look into, with what is root's below `root`. (pytest closes its own to others
        whenever it begins.)"""
        with tempfile.TemporaryDirectory(prefix="djt-") as folder:
            os.chmod(folder, 0o755)
            for kind in ("RUNTIME", "DATA"):
                place = Path(folder) / "root" / kind.lower()
                place.mkdir(parents=True)
                monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(place))
            yield Path(folder)

    @pytest.fixture
    def box(homes: Path, forked: None) -> Iterator[RemoteEngine]:
        engine = dj.load("demo", device="cpu", threads=1, listen="tcp://127.0.0.1:*")
        yield engine
        engine.stop(force=True)
        loading._channels.close()

    @pytest.fixture
    def users(homes: Path, box: RemoteEngine, capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, UnixUser]]:
        """Anna and bert, who have drawn keys, are admitted, and trust the engine."""
        found = {name: UnixUser(uid, homes / name) for name, uid in (("anna", ANNA), ("bert", BERT))}
        for name, user in found.items():
            public = KEY.findall(user.djinn("key", "new", name))[0]
            assert cli.main(["key", "allow", public, "--as", name]) == 0
            user.djinn("key", "trust", address(box), KEY.findall(capsys.readouterr().out)[0])
        yield found
        for user in found.values():
            user.end()

    def test_each_works_at_the_engine_and_reads_nothing_of_the_others(
        box: RemoteEngine, users: dict[str, UnixUser], homes: Path
    ) -> None:
        anna, bert = users["anna"], users["bert"]
        for name, user in users.items():
            assert user.says(WORK.format(at=address(box), prompt=PROMPTS[name])) == as_root_has_it(box, PROMPTS[name])
        anna.says("session.checkpoint('kept')")
        checkpoints = "print([one.name for one in engine.checkpoints()])"
        assert [user.says(checkpoints) for user in (anna, bert)] == ["['kept']\n", "[]\n"]
        assert bert.says("engine.session('anna@main')").startswith("UnknownSession: No session 'anna@main' is shared")
        assert "France" not in bert.says("print(engine.sessions(), engine.statistics(), engine.people())")
        assert anna.says("print(dj.engines())") == "()\n"  # her own registry, in which root's engine is not
        assert_each_has_their_own_files_alone(box, users, homes)
        assert_one_who_is_revoked_is_out_and_the_other_goes_on(box, anna, bert)

    def assert_one_who_is_revoked_is_out_and_the_other_goes_on(
        box: RemoteEngine, anna: UnixUser, bert: UnixUser
    ) -> None:
        anna.begin("engine.session('long', fresh=True).run('The', max_new_tokens=1000, ignore_eos=True)")
        until(lambda: "anna@long" in running(box), "her run is under way")
        assert cli.main(["key", "revoke", "anna"]) == 0
        no_more = "KeyRefused: The engine does not admit this key any more: ask its user"
        assert anna.ends().startswith(no_more)
        assert anna.says("session.describe()").startswith(no_more)
        assert anna.says(f"dj.connect('tcp://{address(box)}')").startswith("KeyRefused: The engine at ")
        assert bert.says("print(session.resume(free=True))").startswith("Finished")

    def as_root_has_it(box: RemoteEngine, prompt: str) -> str:
        session = box.session("main", fresh=True)
        session.breakpoint("resid_post.4")
        stop = session.run(prompt, max_new_tokens=3)
        return stop.hidden.tobytes().hex()

    def running(box: RemoteEngine) -> list[str]:
        return [one.name for one in box.sessions() if one.state == "running"]

    def assert_each_has_their_own_files_alone(box: RemoteEngine, users: dict[str, UnixUser], homes: Path) -> None:
        """See that all files are their user's, and that no other user can open any."""
        sockets = Path(urlsplit(box.entry.commands).path).parent
        folders = {0: [homes / "root", sockets], ANNA: [homes / "anna"], BERT: [homes / "bert"]}
        for uid, theirs in folders.items():
            files = [path for folder in theirs for path in folder.rglob("*") if not path.is_dir()]
            assert files
            assert {path.stat().st_uid for path in files} == {uid}
            for user in users.values():
                opened = [path for path in map(str, files) if user.may_open(path)]
                assert opened == (list(map(str, files)) if user.uid == uid else [])


def address(engine: RemoteEngine) -> str:
    return engine.entry.listens.removeprefix("tcp://")
