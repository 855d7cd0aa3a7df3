"""An engine and a client in processes of their own, of which one lacks a method, or has it otherwise: it is refused by
its name, and the rest works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.cli import main as cli
from tests.strangers import add_stranger

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fake_site")]
HERE: Final = "entropy (djinn_entropy of djinn-entropy 1.0)"
REMEDY: Final = "install the same version for both, end the engine with `djinn stop` and load again."
NO_VERB: Final = "IllegalMove: the fake knows no such verb"  # the engine was asked
REQUEST: Final = """
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest


class EntropyRead(ReplyBase):
    entropy: float


class ReadEntropy(SessionRequest[EntropyRead], shared="read", changes=False):
    layer: int = 0
"""
OTHERWISE: Final = REQUEST.replace("layer: int = 0", "layers: tuple[int, ...] = ()\n    head: int = 0")
WITH_A_REPLY_OF_OTHERS: Final = REQUEST.replace("entropy: float", "entropies: tuple[float, ...]")
CLIENT: Final = """
import json
import djinn_jupyter as dj
from djinn_jupyter.link.registry import method_lines
from djinn_jupyter.wire import protocol, requests

engine = dj.load("fake")


def asked(request):
    try:
        return type(engine.channel.ask(request).result()).__name__
    except dj.DjinnError as error:
        return f"{error.code}: {error}"


told = {"core": asked(requests.Open(session="main", join=True)), "lines": method_lines(engine.channel.welcome)}
try:
    from djinn_entropy.request import ReadEntropy
except ImportError:
    pass
else:
    told["asked"] = asked(ReadEntropy(session="main"))
    protocol.require_method = lambda *others: None
    told["asked nevertheless"] = asked(ReadEntropy(session="main"))
print(json.dumps(told))
"""


def path_with(folder: Path, request: str | None) -> str:
    """Return a PYTHONPATH on which a stranger's method has this module `request`."""
    path = os.environ["PYTHONPATH"]
    if request is None:
        return path
    add_stranger(folder, "djinn-entropy", "djinn_entropy", {"request": request}, method="entropy")
    return os.pathsep.join([str(folder), path])


def told_between(engine: str | None, client: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start an engine and ask it from a client, each of which has the method so; return what the client was told."""
    of_client = path_with(folder / "client", client)
    monkeypatch.setenv("PYTHONPATH", path_with(folder / "engine", engine))
    dj.load("fake")
    asked = subprocess.run(
        [sys.executable, "-c", CLIENT],
        env=os.environ | {"PYTHONPATH": of_client},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert told.pop("core") == "Opened"
    return told


VERSIONS: Final = {
    "request": (OTHERWISE, "VersionMismatch: The engine lacks entropy of the client's methods, or has another"),
    "reply": (
        WITH_A_REPLY_OF_OTHERS,
        f"VersionMismatch: The client has another version of the method {HERE}: {REMEDY}",
    ),
}


def test_a_method_that_both_have_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_between(REQUEST, REQUEST, tmp_path, monkeypatch)
    assert told == {"lines": [HERE], "asked": NO_VERB, "asked nevertheless": NO_VERB}


def test_a_method_that_the_client_lacks_is_named_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told_between(REQUEST, None, tmp_path, monkeypatch) == {"lines": ["the engine alone has entropy"]}
    assert cli.main(["list"]) == 0
    assert "the engine alone has entropy" in capsys.readouterr().out


@pytest.mark.parametrize("other", VERSIONS)
def test_a_method_that_differs_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    request, nevertheless = VERSIONS[other]  # of another reply the request can be read
    told = told_between(request, REQUEST, tmp_path, monkeypatch)
    assert told["lines"] == [f"the engine has another version of {HERE}"]
    assert told["asked"].endswith(f" has another version of the method {HERE}: {REMEDY}")
    assert told["asked nevertheless"].startswith(nevertheless)


def test_a_method_that_the_engine_cannot_import_is_refused_by_its_name_and_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = told_between("raise ImportError('no such library')", REQUEST, tmp_path, monkeypatch)
    [lacks, why] = told["lines"]
    assert lacks == f"the engine lacks {HERE}"
    assert why.startswith(f"in the engine: The method {HERE} is left out, because its 'request' cannot be imported")
    assert told["asked"].startswith("VersionMismatch: The engine of fake ")
    assert told["asked"].endswith(f" lacks the method {HERE}: {REMEDY}")
    assert told["asked nevertheless"].startswith(VERSIONS["request"][1])
