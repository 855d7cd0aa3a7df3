"""Add a module to an engine's model: its folder is read here, and its tensors are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.frames import Listing
from djinn_jupyter.client.given_paths import given_path
from djinn_jupyter.client.named_models import note_on
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.module_files.circuit_tracer import layers_in
from djinn_jupyter.module_files.folder import ModuleFolder, read_folder
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.module_form import MOST_TENSORS, AddedModuleDescription, NamedTensor
from djinn_jupyter.wire.sites import parse_site, parse_trained

NAMELESS: Final = "name the point that it reads, as in at='resid_post.4' (--at resid_post.4)"


def add_module(
    channel: Channel, name: str, folder: str | Path, at: str | None, *, error_term: bool
) -> AddedModuleDescription:
    """Add the module in a folder, and return what it is."""
    return _added(channel, name, read_folder(given_path(folder, "folder"), _layer_of(at)), at, error_term=error_term)


def add_transcoders(
    channel: Channel, name: str, folder: str | Path, point: str | None, *, error_term: bool
) -> Listing[AddedModuleDescription]:
    """Add the transcoders of all layers in a folder of circuit-tracer. Where one is refused, those before it stay."""
    path = given_path(folder, "folder")
    layers = layers_in(path) if path.is_dir() else []
    if not layers:
        raise UsageError(
            f"{path} has no transcoders of circuit-tracer by layer, such as layer_0.safetensors, or "
            "W_enc_0.safetensors with W_dec_0.safetensors; one module is added by engine.add_module "
            "(%djinn_add_module)."
        )
    places = [(layer, None if point is None else f"{point}.{layer}") for layer in layers]
    return Listing(_added(channel, name, read_folder(path, layer), at, error_term=error_term) for layer, at in places)


def _layer_of(at: str | None) -> int | None:
    """Return the layer of a point's spelling; None where that is none, which the engine says."""
    try:
        return None if at is None else parse_site(at).layer
    except UnknownSite:
        return None


def _added(
    channel: Channel, name: str, found: ModuleFolder, at: str | None, *, error_term: bool
) -> AddedModuleDescription:
    note = note_on(found.path, "model_name", found.model, found.unknown, channel.welcome.model)
    if len(found.tensors) > MOST_TENSORS:
        raise UsageError(f"{found.path} has {len(found.tensors)} tensors; a module has at most {MOST_TENSORS}.")
    with temporary_session(channel, "module") as session:
        request = ask.AddModule(
            session=session,
            name=name,
            at=at if at is not None else _trained_at(found),
            form=found.form,
            tensors=tuple(NamedTensor(name=one, values=values) for one, values in found.tensors.items()),
            folder=str(found.path),
            digest=found.digest,
            error_term=error_term,
        )
        module = ask_for(channel, request).module
    notes = [one for one in (module.note, note) if one is not None]
    return msgspec.structs.replace(module, note="; ".join(notes) or None)


def remove_module(channel: Channel, name: str) -> int:
    """Remove the modules of a name, or the one of a site. Return how many there were."""
    word, _, layer = name.partition(".")
    request = ask.RemoveModule(name=word, layer=int(layer) if layer.isdecimal() else None)
    if layer and not layer.isdecimal():
        raise UnknownSite(f"{name!r} is no added module; write sae, or sae.4.")
    return ask_for(channel, request).count


def _trained_at(found: ModuleFolder) -> str:
    """Return the point that a module's files name."""
    if found.form.trained_at is None:
        raise UsageError(f"{found.path} does not say where its module was trained: {NAMELESS}.")
    try:
        parse_trained(found.form.trained_at)
    except UnknownSite:
        raise UsageError(
            f"{found.path} says that its module was trained at {found.form.trained_at!r}, which is no point here: "
            f"{NAMELESS}."
        ) from None
    return found.form.trained_at
