"""`--random-weights CONFIG`: the configuration of an architecture, its sizes changed by `--set architecture.KEY=VALUE`.

The engine or baseline that loads it draws the weights; this module handles only its config.json.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from djinn_evaluation.configuration.reading import decode_yaml
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import UsageError

PREFIX = "architecture."


def split(settings: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the settings of the experiment's file, and those of the architecture by key."""
    own, sizes = [], {}
    for setting in settings:
        if not setting.startswith(PREFIX):
            own.append(setting)
            continue
        key, equals, value = setting.removeprefix(PREFIX).partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, for example architecture.num_hidden_layers=4; not {setting!r}.")
        sizes[key] = decode_yaml(value, f"--set {setting}")
    return own, sizes


@contextmanager
def architecture(config: str | None, sizes: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield a model to be loaded with random weights: a folder with nothing but its config.json, or a hub name; None
    where `config` is None. UsageError for a key that the architecture does not have."""
    if config is None:
        if sizes:
            raise UsageError("--set architecture... changes the sizes of what --random-weights names; give that too.")
        yield None
        return
    found = _known(config)
    if found is None:
        if sizes:
            raise UsageError(
                f"The sizes of {config} cannot be changed, for its config.json is not at hand; give a path."
            )
        yield config
        return
    if unknown := sorted(sizes.keys() - found.keys()):
        raise UsageError(f"{config} has no key {unknown[0]}; its keys are {', '.join(sorted(found))}.")
    with tempfile.TemporaryDirectory(prefix="djinn-architecture-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**found, **sizes}))
        yield folder


def shipped() -> tuple[str, ...]:
    """Return the names of the architectures in the package."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _files().iterdir()))


def _known(config: str) -> dict[str, Any] | None:
    path = given_path(config, "architecture")
    path = path / "config.json" if path.is_dir() else path
    name = config.rpartition("/")[2]
    if not path.is_file():
        if name in shipped():
            return _read(config, (_files() / f"{name}.json").read_text())
        if path.suffix == ".json" or config.startswith((".", "/", "~")):
            raise UsageError(f"There is no architecture {config}; give a folder, a config.json or a hub name.")
        return None
    return _read(config, path.read_text())


def _read(config: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "model_type" not in found:
        raise UsageError(f"{config} is no configuration of a model: it has no model_type.")
    return found


def _files() -> Any:
    return resources.files("djinn_evaluation.configuration") / "architectures"
