"""An engine of another commit, which has the same version: every program that meets it says so in the same sentence."""

from __future__ import annotations

import msgspec
import pytest

import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
from djinn_jupyter._version import __version__
from djinn_jupyter.api import loading
from djinn_jupyter.errors import VersionMismatch
from djinn_jupyter.link import doctor
from djinn_jupyter.link.registry import is_alive, refusal_of, running_engines
from djinn_jupyter.server.link import _refusal
from djinn_jupyter.settings import Options
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.registry import Entry, decode_entry, encode_entry

pytestmark = pytest.mark.usefixtures("fake_site")
DIFFERENT = f"is of another version of Djinn (both are called {__version__}, but their messages differ)"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Entry:
    """An engine in a process of its own; from here on this process's messages are others than its."""
    dj.load("fake")
    (entry,) = running_engines()
    loading._channels.close()
    monkeypatch.setattr(protocol, "digest", lambda: "of another commit")
    return entry


def _sentence(entry: Entry) -> str:
    return (
        f"The engine of fake (process {entry.pid}) {DIFFERENT}: end it with `djinn stop --force fake` and load again; "
        "its sessions come back then."
    )


def test_load_and_attach_refuse_it_in_one_sentence(other: Entry) -> None:
    for meet in (lambda: dj.load("fake"), lambda: dj.attach(other).statistics()):
        with pytest.raises(VersionMismatch) as refused:
            meet()
        assert str(refused.value) == _sentence(other)


def test_the_doctor_the_server_and_the_list_say_the_same(other: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    assert _sentence(other) in [finding.sentence for finding in doctor._registry()]
    assert _refusal(other) == _sentence(other)
    assert cli.main(["list"]) == 0
    assert _sentence(other) in capsys.readouterr().out


def test_it_is_ended_by_the_command_that_the_sentence_names(other: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "fake"]) == 1
    assert DIFFERENT in capsys.readouterr().err
    assert is_alive(other)
    assert cli.main(["stop", "--force", "fake"]) == 0
    assert not is_alive(other)


def test_an_entry_from_before_there_was_a_digest_is_of_another_version(other: Entry) -> None:
    fields = msgspec.json.decode(encode_entry(other))
    del fields["protocol"]
    old = decode_entry(msgspec.json.encode(fields))
    assert DIFFERENT in str(refusal_of(old))


def test_where_nothing_is_journalled_the_sentence_says_that_sessions_end(other: Entry) -> None:
    unkept = msgspec.structs.replace(other, options=Options(no_journal=True))
    assert str(refusal_of(unkept)).endswith("and load again; its sessions end with it.")
