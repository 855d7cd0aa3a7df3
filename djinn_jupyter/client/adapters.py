"""Add an adapter to an engine's model: its folder is read here, and its matrices are sent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.given_paths import given_path
from djinn_jupyter.client.named_models import note_on
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.module_files.peft import read_adapter
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.adapters import AdapterDescription, AdapterIdentity


def add_adapter(channel: Channel, name: str, folder: str | Path) -> AdapterDescription:
    """Add the adapter in a folder, and return what it is."""
    found = read_adapter(given_path(folder, "folder"))
    note = note_on(found.path, "base_model_name_or_path", found.model, found.unknown, channel.welcome.model)
    with temporary_session(channel, "adapter") as session:
        request = ask.AddAdapter(
            session=session, name=name, modules=found.modules, folder=str(found.path), digest=found.digest
        )
        adapter = ask_for(channel, request).adapter
    return msgspec.structs.replace(adapter, note=note)


def same_adapter(channel: Channel, kept: AdapterIdentity | None) -> str | None:
    """Return the name of the adapter here that is of the same files as one that a result was computed with; None where
    it was computed with none. Raises UsageError where it is not there."""
    if kept is None:
        return None
    there = ask_for(channel, ask.ListAdapters()).adapters
    name = next((one.name for one in there if one.digest == kept.digest), None)
    if name is None:
        raise UsageError(
            f"It was computed with the adapter {kept.name} of {kept.folder}, which is not added here as it was; add it "
            f"first (%djinn_add_adapter {kept.name} {kept.folder})."
        )
    return name
