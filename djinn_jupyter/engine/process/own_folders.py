"""The folders of the engine's own user, which no message to a person with a key names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.wire.registry import FOLDER

UNTOLD: Final = "…"
Folders = tuple[str, ...]


def own_folders(config: EngineConfig) -> Folders:
    """Return the folders that an engine's sentences may name, the longest first."""
    return tuple(sorted({str(one) for one in _folders(config) if one.is_absolute()}, key=len, reverse=True))


def without(folders: Folders, message: str) -> str:
    """Return a sentence in which paths begin behind these folders."""
    for folder in folders:
        message = message.replace(folder, UNTOLD)
    return message


def _folders(config: EngineConfig) -> Iterator[Path]:
    yield config.data_folder or Path(jupyter_data_dir()) / FOLDER
    yield from (Path(one) for one in (config.shared_journal, config.checkpoints) if one and "://" not in one)
