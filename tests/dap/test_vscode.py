"""The VS Code package: its manifest, its configurations, and its command with a client of the protocol."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from jsonschema import Draft7Validator

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap.protocol import Attach, Launch, passed_over, read
from tests.dap.editor import Editor, on_pipes, on_port
from tests.house.repository import ROOT

MANIFEST: Final[dict[str, Any]] = json.loads((ROOT / "vscode" / "package.json").read_text(encoding="utf-8"))
(DEBUGGER,) = MANIFEST["contributes"]["debuggers"]
# What VS Code takes in a debugger's contribution, by its type (`debuggers` in its debugSchemas.ts).
TEXTS, LISTS, OBJECTS = (
    ("type", "label", "program", "runtime", "adapterExecutableCommand"),
    ("args", "runtimeArgs", "languages", "configurationSnippets", "initialConfigurations"),
    ("variables", "configurationAttributes", "windows", "osx", "linux"),
)
SCHEMA: Final = {
    "type": "object",
    "required": ["name", "version", "publisher", "engines", "contributes"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "engines": {"type": "object", "required": ["vscode"], "additionalProperties": {"type": "string"}},
        "categories": {"items": {"enum": ["Debuggers"]}},
        "contributes": {
            "additionalProperties": False,
            "properties": {
                "debuggers": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["type", "label"],
                        "properties": {
                            **{name: {"type": "string"} for name in TEXTS},
                            **{name: {"type": "array"} for name in LISTS},
                            **{name: {"type": "object"} for name in OBJECTS},
                        },
                    },
                }
            },
        },
    },
}
SNIPPETS: Final = [*DEBUGGER["initialConfigurations"], *(one["body"] for one in DEBUGGER["configurationSnippets"])]
KINDS: Final = {"launch": Launch, "attach": Attach}
PLACEHOLDER: Final = re.compile(r"^\$\{\d+:(.*)\}$")


def filled(snippet: dict[str, Any]) -> dict[str, Any]:
    """Return a snippet with its own words in its open places."""
    return {name: PLACEHOLDER.sub(r"\1", one) if isinstance(one, str) else one for name, one in snippet.items()}


def test_the_manifest_is_what_vs_code_takes() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(MANIFEST)] == []
    assert "main" not in MANIFEST  # no code of the package runs
    assert "./" not in DEBUGGER["runtime"]  # so VS Code finds it on the path


@pytest.mark.parametrize("request_", KINDS)
def test_attributes_are_the_fields_of_the_adapter(request_: str) -> None:
    attributes = DEBUGGER["configurationAttributes"][request_]
    Draft7Validator.check_schema(attributes)
    fields = {field.encode_name: field for field in msgspec.structs.fields(KINDS[request_])}
    assert set(attributes["properties"]) == set(fields) - {"noDebug"} | {"token"}
    assert set(attributes["required"]) == {name for name, field in fields.items() if field.required}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one["name"])
def test_each_configuration_is_taken_by_the_schema_and_by_the_adapter(snippet: dict[str, Any]) -> None:
    given = filled(snippet)
    assert given["type"] == DEBUGGER["type"]
    kind = KINDS[given["request"]]
    schema = DEBUGGER["configurationAttributes"][given["request"]]
    assert [error.message for error in Draft7Validator(schema).iter_errors(given)] == []
    assert passed_over(kind, given) == []
    assert read(kind, given["request"], given).model == "demo"
    wrong = {**given, "model": 5}
    assert [error.message for error in Draft7Validator(schema).iter_errors(wrong)]


@pytest.fixture
def on_the_path(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `djinn` on the path, as in an environment that was activated."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def runs(editor: Editor, **configuration: Any) -> None:
    """Launch a configuration up to its first stop, then to its end."""
    editor.launch(**configuration)
    assert editor.stopped() == "resid_pre.0"
    editor.ask("continue", threadId=1)
    assert editor.event("terminated") == {}


@pytest.mark.usefixtures("on_the_path")
def test_its_command_runs_its_first_configuration() -> None:
    editor = on_pipes(DEBUGGER["runtime"], *DEBUGGER["args"])
    runs(editor, **filled(SNIPPETS[0]))
    editor.leave()


@pytest.mark.usefixtures("on_the_path")
def test_its_command_follows_a_session(engine: RemoteEngine) -> None:
    session = engine.session("01_quickstart", fresh=True)
    session.breakpoint("resid_post.4")
    session.run("The capital of France is")
    editor = on_pipes(DEBUGGER["runtime"], *DEBUGGER["args"])
    editor.ask("attach", **filled(SNIPPETS[1]))
    editor.event("initialized")
    editor.ask("configurationDone")
    assert editor.stopped() == "resid_post.4"
    editor.ask("disconnect")
    editor.leave()


@pytest.fixture
def listening(on_the_path: None) -> Iterator[tuple[int, str]]:
    """The port and the token that `djinn dap --port` prints."""
    command = [DEBUGGER["runtime"], *DEBUGGER["args"], "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = int(process.stderr.readline().rpartition(":")[2])
    yield port, json.loads(f"{{{process.stderr.readline()}}}")["token"]
    process.terminate()
    process.wait()
    process.stderr.close()


def test_an_adapter_on_a_port_takes_the_configuration_with_its_token(listening: tuple[int, str]) -> None:
    port, token = listening
    configuration = filled(SNIPPETS[-1])
    assert configuration["debugServer"] == 4711
    wrong = on_port(port, "wrong")
    assert "token" in wrong.refused("launch", **configuration)
    wrong.leave()
    editor = on_port(port, token)
    runs(editor, **configuration | {"debugServer": port, "token": token})
    editor.leave()


@pytest.mark.slow
def test_the_package_has_the_manifest_and_nothing_that_runs() -> None:
    """`make vsix` packs it, and sets DJINN_VSIX."""
    with zipfile.ZipFile(os.environ["DJINN_VSIX"]) as packed:
        names = set(packed.namelist())
        assert json.loads(packed.read("extension/package.json")) == MANIFEST
        identity = packed.read("extension.vsixmanifest").decode()
    assert {name for name in names if name.endswith((".js", ".ts", ".node"))} == set()
    assert "extension/LICENSE.txt" in names
    assert f'Id="djinn-debug" Version="{MANIFEST["version"]}" Publisher="djinn-jupyter"' in identity
