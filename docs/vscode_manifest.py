"""Writes the manifest of the VS Code package from the adapter's configurations. `write_reference.py` calls it."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.editors.dap.protocol import Attach, Launch
from djinn_jupyter.settings import GivenOptions, GivenSampling, settings_of

TYPE: Final = "djinn"
TOKEN: Final = {"type": "string", "description": "with debugServer: what `djinn dap --port N` prints with its port"}
RUN: Final = {
    "name": "Run a prompt",
    "type": TYPE,
    "request": "launch",
    "model": "demo",
    "prompt": "The capital of France is",
    "max_new_tokens": 8,
    "stop_on_entry": True,
}
FOLLOW: Final = {
    "name": "Follow a notebook",
    "type": TYPE,
    "request": "attach",
    "model": "demo",
    "session": "01_quickstart",
}
OVER_A_PORT: Final = {
    **RUN,
    "name": "Run a prompt over a port",
    "debugServer": 4711,
    "token": "${1:printed with the port}",
}
CONFIGURATIONS: Final = (RUN, FOLLOW, OVER_A_PORT)


def manifest() -> str:
    """Return the package.json. The package has no code: VS Code runs `djinn dap`."""
    debugger = {
        "type": TYPE,
        "label": "Djinn",
        "runtime": "djinn",
        "args": ["dap"],
        "configurationAttributes": {"launch": _attributes(Launch), "attach": _attributes(Attach)},
        "initialConfigurations": [RUN, FOLLOW],
        "configurationSnippets": [{"label": f"Djinn: {one['name']}", "body": one} for one in CONFIGURATIONS],
    }
    told = {
        "name": "djinn-debug",
        "displayName": "Djinn",
        "description": "Debug the forward pass of a language model: breakpoints in layers, activations as variables",
        "version": __version__,
        "publisher": "djinn-jupyter",
        "license": "BSD-3-Clause",
        "engines": {"vscode": "^1.80.0"},
        "categories": ["Debuggers"],
        "contributes": {"debuggers": [debugger]},
    }
    return json.dumps(told, indent=2) + "\n"


def _attributes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a configuration, with the help of the engine's options."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    helps = {one.name: one.described.help for one in (*settings_of(GivenOptions), *settings_of(GivenSampling))}
    fields = {name: _field(of, helps.get(name)) for name, of in schema["properties"].items() if name != "noDebug"}
    return {"required": schema["required"], "properties": {**fields, "token": TOKEN}}


def _field(schema: dict[str, Any], said: str | None) -> dict[str, Any]:
    """Return the schema of a field: leaving it out is the same as null."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    plain = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    typed = kinds[0] if len(kinds) == 1 else {"type": [one["type"] for one in kinds]} if kinds else {}
    return {**plain, **typed, **({"description": said} if said else {})}
