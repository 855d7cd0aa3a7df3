"""An engine and a client in processes of their own, of which one lacks methods, or has them otherwise: each is refused
by its name, and the rest works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.cli import main as cli
from tests.strangers import add_stranger

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fake_site")]
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
# What each side has of a method, by its name; of another reply the request can be read.
ENGINE: Final = {
    "entropy": REQUEST,
    "alone": REQUEST,
    "request": REQUEST.replace("layer: int = 0", "layers: tuple[int, ...] = ()\n    head: int = 0"),
    "reply": REQUEST.replace("entropy: float", "entropies: tuple[float, ...]"),
    "broken": "raise ImportError('no such library')",
}
CLIENT: Final = dict.fromkeys(("entropy", "request", "reply", "broken"), REQUEST)
ASKING: Final = """
import importlib, json
import djinn_jupyter as dj
from djinn_jupyter.link.registry import method_lines
from djinn_jupyter.wire import protocol, requests

engine = dj.load("fake")


def asked(request):
    try:
        return type(engine.channel.ask(request).result()).__name__
    except dj.DjinnError as error:
        return f"{error.code}: {error}"


def asked_for_all():
    replies = {}
    for name in ("entropy", "request", "reply", "broken"):
        kind = getattr(importlib.import_module(f"of_{name}.request"), f"Read{name.capitalize()}")
        replies[name] = asked(kind(session="main"))
    return replies


told = {"core": asked(requests.Open(session="main", join=True)), "lines": method_lines(engine.channel.welcome)}
told["asked"] = asked_for_all()
protocol.require_method = lambda *others: None
print(json.dumps(told | {"nevertheless": asked_for_all()}))
"""


def named(name: str) -> str:
    return f"{name} (of_{name} of of-{name} 1.0)"


def path_with(folder: Path, methods: Mapping[str, str]) -> str:
    """Return a PYTHONPATH on which strangers' methods have these modules `request`."""
    for name, text in methods.items():
        own = text.replace("Entropy", name.capitalize())
        add_stranger(folder, f"of-{name}", f"of_{name}", {"request": own}, method=name)
    return os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])


def test_a_method_that_differs_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is one that the engine lacks, or cannot import, which is said with the reason. What both have is asked for."""
    of_client = path_with(tmp_path / "client", CLIENT)
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path / "engine", ENGINE))
    dj.load("fake")
    assert cli.main(["list"]) == 0
    assert "the engine alone has alone" in capsys.readouterr().out
    environment = os.environ | {"PYTHONPATH": of_client}
    asked = subprocess.run([sys.executable, "-c", ASKING], env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert told["core"] == "Opened"
    *lines, why = sorted(told["lines"], key=lambda line: line.startswith("in the engine: "))
    assert {
        named("entropy"),
        "the engine alone has alone",
        f"the engine has another version of {named('request')}",
        f"the engine has another version of {named('reply')}",
        f"the engine lacks {named('broken')}",
    } == {*lines}
    left_out = f"in the engine: The method {named('broken')} is left out, because its 'request' cannot be imported"
    assert why.startswith(left_out)
    refused, nevertheless = told["asked"], told["nevertheless"]
    assert refused["entropy"] == nevertheless["entropy"] == NO_VERB
    for name in ("request", "reply"):
        assert refused[name].endswith(f" has another version of the method {named(name)}: {REMEDY}")
    assert refused["broken"].startswith("VersionMismatch: The engine of fake ")
    assert refused["broken"].endswith(f" lacks the method {named('broken')}: {REMEDY}")
    for name in ("request", "broken"):
        lacks, comma, _ = nevertheless[name].partition(" of the client's methods, or has another")
        names = lacks.removeprefix("VersionMismatch: The engine lacks ").split(" and ")
        assert sorted(names) == ["broken", "reply", "request"]
        assert comma
    other = f"VersionMismatch: The client has another version of the method {named('reply')}: {REMEDY}"
    assert nevertheless["reply"] == other
