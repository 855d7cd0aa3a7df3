"""Every option of every magic, beside each form of its line: what the engine is asked, what is shown, what is kept or
who is in use differs without it, or the line is refused. Magics and options are those of the parsers: one that stands
in no table here fails."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.settings import GivenSampling, settings_of
from djinn_jupyter.wire import codec, requests
from djinn_jupyter.wire.modules import AdapterDescription
from tests import saes, transcoders
from tests.magics.conftest import Notebook
from tests.magics.double import EngineDouble, client_double
from tests.magics.option_forms import FORMS, STATES, variables, with_option
from tests.magics.test_adding import folder_in
from tests.magics.test_bad_input import magics
from tests.widgets import samples

pytestmark = pytest.mark.drawn

ASKED_ANYWAY = (requests.Note, requests.ListSessions)  # where a name is looked up, and around each cell
_IDENTITY, _TIME = re.compile(rb"[0-9a-f]{32}"), re.compile(r"\d\d:\d\d(:\d\d)?|\d+\.\d+ s\b")

# What may change nothing in some of the forms, though it is heard in another.
ABSENT = "what it would replace, or enter, is not there or is this notebook's own"
NEUTRAL = {
    ("fork", "fresh"): ABSENT,
    ("resume", "force"): ABSENT,
    ("run", "force"): ABSENT,
    ("use", "join"): ABSENT,
    ("watch", "show"): "--hover shows too",
}
# What no form here hears.
ELSEWHERE = {
    ("resume", "measure"): "tests/magics/test_batches.py: the run of the double ends without logits",
    ("run", "measure"): "tests/magics/test_batches.py: the run of the double ends without logits",
    ("edit", "torch"): "tests/magics/test_magics.py: of the cell form",
    ("reproduce", "collection"): "tests/client/test_reproducing_collections.py: of a trained module",
    ("vram", "seconds"): "tests/magics/test_vram.py: of a chart that runs; outputs are static here",
}


@pytest.fixture
def places(tmp_path: Path, bare: Notebook, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what lines call their folders, and have the log of an engine be a file there."""
    log = tmp_path / "log"
    log.write_text(json.dumps({"trace_id": "3f2a9c01"}) + "\n" + "another line\n" * 30)
    monkeypatch.setattr("djinn_jupyter.link.registry.log_of", lambda entry: log)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "names.csv").write_text("1,soup\n")
    found = {
        "<sae>": saes.saved(tmp_path / "sae", saes.drawn(8), hook_name="blocks.4.hook_resid_post"),
        "<clt>": transcoders.set_saved(tmp_path / "clt", {n: transcoders.drawn(8) for n in range(2)}, config=False),
        "<sql>": folder_in(tmp_path / "adapter"),
        "<names>": tmp_path / "names.csv",
        "<out>": tmp_path / "out",
        "<figure>": tmp_path / "figure.svg",
    }
    return {name: f'"{path}"' for name, path in found.items()}


def bring(notebook: Notebook, state: str, places: dict[str, str]) -> None:
    """Give the notebook an engine and a namespace of its own, in this state."""
    out = Path(places["<out>"].strip('"'))
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".study.zip").unlink(missing_ok=True)
    notebook.state.forget()
    engine, another = EngineDouble(), EngineDouble()
    another.moves = engine.moves
    notebook.engine, notebook.state.client = engine, client_double(engine)
    notebook.state.client.beside = lambda *_, **__: RemoteEngine(another.channel)
    for name in ("kept_here", "found", "grid"):
        notebook.shell.user_ns.pop(name, None)
    notebook.shell.user_ns.update(variables())
    if "trace" not in notebook.shell.user_ns:
        with MemoryTrace(engine.channel) as notebook.shell.user_ns["trace"]:
            pass
    stopped = STATES["stopped"]
    before = f"%djinn_load demo --session other\n{stopped}\n%djinn_checkpoint kept\n%djinn_load demo\n"
    notebook.cell(placed(before + STATES[state], places))
    engine.adapters += (AdapterDescription(name="sql", folder="", digest="", modules=1, targets=(), bytes_held=1),)
    for name in ["theirs", *["paris/0"] * (state == "rows")]:
        engine.sessions[name] = msgspec.structs.replace(samples.session(name), holder="kernel-2", notebook="rome.ipynb")
    if state == "logged":
        notebook.state.engine.entry = SimpleNamespace(is_afar=False, log="log")
    if state == "recomputed":
        for name in tuple(engine.sessions):
            engine._change(name, exactness="recomputed")
    if state == "charted":
        notebook.state.chart = SimpleNamespace(running=True, stop=int, trace=notebook.shell.user_ns["trace"])
    engine.channel.requests.clear()


def placed(line: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        line = line.replace(name, path)
    return line


def seen(notebook: Notebook, name: str, state: str, line: str, places: dict[str, str]) -> Any:
    """Return the error of a line in a new state, or all that it does."""
    bring(notebook, state, places)
    asked = [notebook.engine.channel.requests, notebook.state.client.beside().channel.requests]
    form = "%%" if "\n" in line else "%"
    shown = notebook._run(placed(f"{form}djinn_{name} {line}", places))
    if notebook.error:
        assert notebook.error.startswith("UsageError"), notebook.error
        return notebook.error
    sent = [
        [_IDENTITY.sub(b"", bytes(frame)) for one in each if not isinstance(one, ASKED_ANYWAY) for frame in frames(one)]
        for each in asked
    ]
    kept = type(notebook.shell.user_ns.get("kept_here", ...))
    loaded = notebook.state.client.loaded
    drawn = [_TIME.sub("", str(one.data)) for one in notebook.outputs]
    return sent, _TIME.sub("", shown), drawn, kept, notebook.state.present, loaded


def frames(request: Any) -> list[Any]:
    return list(codec.encode_checked(0, request))


def options_beside(parser: argparse.ArgumentParser, line: str) -> list[argparse.Action]:
    """Return the options that a line does not give: those with dashes, and what may follow by its place."""
    words = line.split()
    last = [one for one in parser._actions if not one.option_strings][-1:]
    by_place = [one for one in last if one.nargs in ("?", "*") and not words]
    return by_place + [
        one for one in parser._actions if one.option_strings and not set(one.option_strings) & set(words)
    ]


@pytest.mark.parametrize("name", [*(name.removeprefix("djinn_") for name in magics()), "unload"])
def test_each_option_is_heard_or_refused(bare: Notebook, places: dict[str, str], name: str) -> None:
    parser = bare.shell.magics_manager.magics["line"][f"djinn_{name}"].parser
    heard, neutral = set[str](), set[str]()
    for number, (state, line) in enumerate(FORMS[name]):
        without = seen(bare, name, state, line, places)
        if number == 0:
            assert without == seen(bare, name, state, line, places), "the same line does the same"
        if not isinstance(without, str):
            heard |= {one.dest for one in parser._actions if set(one.option_strings) & set(line.split())}
        for one in options_beside(parser, line):
            found = seen(bare, name, state, with_option(name, line, one), places)
            if not isinstance(found, str):
                (neutral if found == without else heard).add(one.dest)
    elsewhere = {option for of, option in ELSEWHERE if of == name}
    assert neutral - elsewhere == {option for of, option in NEUTRAL if of == name}
    assert {one.dest for one in parser._actions if one.option_strings} - heard == elsewhere


@pytest.mark.parametrize("magic", ["%djinn_fork other", "%djinn_step", "%djinn_back"])
def test_settings_of_sampling_are_refused_with_the_reason_where_a_run_goes_on(stopped: Notebook, magic: str) -> None:
    for setting in settings_of(GivenSampling):
        if setting.name != "seed" or "fork" not in magic:  # that of an edit
            value = "" if setting.kinds == {bool} else "1"
            assert "is of the sampling, which %djinn_run and %djinn_resume choose" in stopped.fails(
                f"{magic} {setting.flags[-1]} {value}"
            )
    assert "--model-defaults is of the sampling" in stopped.fails("%djinn_resume --model-defaults")
