"""An engine's entry in the registry and the private folder of its sockets: made when it answers, removed at its end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil
from jupyter_core.paths import jupyter_runtime_dir, secure_write
from jupyter_core.utils import ensure_dir_exists

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.wire.host import boot_id, host_name
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, FOLDER, CurveKeys, Entry, Identity, Options, encode_entry

SOCKET_FOLDER_PREFIX = "djinn-"


def identity_of(config: EngineConfig) -> Identity:
    return Identity(
        model=config.model,
        revision=config.revision,
        dtype=config.dtype,
        device=config.device,
        attention=config.attention,
        random_weights=config.random_weights,
        random_seed=config.random_seed,
    )


def options_of(config: EngineConfig) -> Options:
    return Options(
        device_memory=config.device_memory,
        card_memory=config.card_memory,
        host_memory=config.host_memory,
        disk_memory=config.disk_memory,
        idle_swap_seconds=config.idle_swap_seconds,
        nap_seconds=config.nap_seconds,
        page_positions=config.page_positions,
        trust_remote_code=config.trust_remote_code,
        stops_kept=config.stops_kept,
        no_journal=not config.journal,
        threads=config.threads,
    )


def make_entry(
    config: EngineConfig,
    found: ModelDescription,
    *,
    commands: str,
    events: str,
    log: str | None,
    keys: CurveKeys | None,
) -> Entry:
    """This process as an entry of the registry."""
    return Entry(
        version=__version__,
        pid=os.getpid(),
        created=psutil.Process().create_time(),
        host=host_name(),
        boot=boot_id(),
        started=time.time(),
        identity=identity_of(config),
        found=Identity(
            model=found.name,
            revision=found.revision,
            dtype=found.dtype,
            device=found.device,
            attention=found.attention,
            random_weights=config.random_weights,
            random_seed=config.random_seed,
        ),
        options=options_of(config),
        commands=commands,
        events=events,
        log=log,
        keys=keys,
    )


class Registration:
    """One file, readable by its owner only, that appears whole (written aside, then renamed) and disappears once."""

    def __init__(self, entry: Entry) -> None:
        folder = Path(jupyter_runtime_dir()) / FOLDER
        ensure_dir_exists(str(folder), mode=0o700)
        self.path = folder / f"{entry.identity.slug()}-{entry.pid}{ENTRY_SUFFIX}"
        aside = self.path.with_suffix(".part")
        with secure_write(str(aside)) as file:
            file.write(encode_entry(entry).decode())
        aside.replace(self.path)

    def withdraw(self) -> None:
        self.path.unlink(missing_ok=True)


class SocketFolder:
    """A folder of mode 0700 with a path short enough for Unix sockets (at most 103 bytes on macOS)."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > 70:
            parent = "/tmp"
        self.path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX, dir=parent))

    def endpoint(self, name: str) -> str:
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
