"""Add modules and adapters to an engine's model, and compare the model that their files name with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.api import names
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.api.likeness import temporary_session
from djinn_jupyter.api.tables import Listing
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.modules.files.circuit_tracer import layers_in
from djinn_jupyter.modules.files.feature_names import LONGEST, read_names, shortened
from djinn_jupyter.modules.files.files import ModuleFolder
from djinn_jupyter.modules.files.folder import read_folder
from djinn_jupyter.modules.files.peft import read_adapter
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import MOST_TENSORS, AdapterDescription, AddedModuleDescription, NamedTensor
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.sites import parse_site, parse_trained
from djinn_jupyter.wire.texts import shown

FAMILIES: Final = {
    "bloom": "Bloom",
    "falcon": "Falcon",
    "gemma": "Gemma",
    "gpt2": "GPT2",
    "gptj": "GPTJ",
    "llama": "Llama",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "olmo": "Olmo",
    "pythia": "GPTNeoX",
    "qwen": "Qwen",
}  # part of a model's name, and the beginning of its architectures' names
HUB_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
SAME: Final = {"gpt2small": "gpt2"}  # TransformerLens's names


def note_on(where: Path, field: str, named: str | None, unknown: Sequence[str], here: ModelDescription) -> str | None:
    """Return a note on files in a folder: the name of another model, where it may be the engine's own, and unknown
    fields. Raises UsageError, which names the `field`, where the model is certainly another one."""
    said = []
    if named is not None and _plain(named) != _plain(here.name):
        if _is_another(named, here):
            raise UsageError(
                f"{where} has {field} {named!r}, and this engine serves {here.name} ({here.architecture}): add it to "
                f"an engine of its own model. If it is of this model, change {field} in the file."
            )
        said.append(f"its files say that it was trained on {named}")
    if unknown:
        said.append(f"its files also have {', '.join(unknown)}, unknown here and without a value")
    return "; ".join(said) or None


def _is_another(named: str, here: ModelDescription) -> bool:
    """Return whether a name certainly belongs to another model: to another family, or where no family is known another
    name on the hub."""
    families = [begin for word, begin in FAMILIES.items() if word in _plain(named)]
    if families:
        return not any(here.architecture.startswith(begin) for begin in families)
    one, other = _plain(named), _plain(here.name)
    on_hub = all(HUB_NAME.fullmatch(name) and not Path(name).exists() for name in (named, here.name))
    return on_hub and one not in other and other not in one


def _plain(name: str) -> str:
    """Return the last word of a model's name, normalized: `gemma-v3` is `gemma-3`."""
    last = name.rstrip("/").rpartition("/")[2].lower().replace("-v", "-")
    plain = re.sub(r"[^a-z0-9]", "", last)
    return SAME.get(plain, plain)


# Add a module to an engine's model: this process reads the folder and sends the tensors.

NAMELESS: Final = "name the point that it reads, as in at='resid_post.4' (--at resid_post.4)"


def add_module(
    channel: Channel, name: str, folder: str | Path, at: str | None, *, error_term: bool
) -> AddedModuleDescription:
    """Add the module in a folder, and return its description."""
    return _added(channel, name, read_folder(given_path(folder, "folder"), _layer_of(at)), at, error_term=error_term)


def add_transcoders(
    channel: Channel, name: str, folder: str | Path, point: str | None, *, error_term: bool
) -> Listing[AddedModuleDescription]:
    """Add the transcoders of all layers in a folder of circuit-tracer. If one is refused, the earlier ones stay."""
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
    """Return the layer of a point's spelling; None for an invalid one, which the engine reports."""
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
    """Remove the modules of a name, or the one at a site. Return the number removed."""
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


# Name features: this process reads the files and keeps the names, by the digest of the module's files.


def name_features(
    channel: Channel, site: str, given: Mapping[int, str] | str | Path
) -> tuple[dict[int, str], str | None]:
    """Name features of the module at a site, by feature or from a file. Return all its names, and a note on the
    file."""
    module = module_at(channel, site)
    if isinstance(given, Mapping):
        named, note = {_checked(module, feature): shortened(name) for feature, name in given.items()}, None
    else:
        named, note = _of_file(channel, module, given_path(given, "file"))
    names.write(module.digest, named)
    return names.read(module.digest), note


def feature_names(channel: Channel, site: str) -> dict[int, str]:
    """Return the names of the features of the module at a site."""
    return names.read(module_at(channel, site).digest)


def module_at(channel: Channel, site: str) -> AddedModuleDescription:
    """Return the added module at a site. Raises UnknownSite where there is none."""
    there = ask_for(channel, ask.ListAddedModules()).modules
    found = next((one for one in there if one.site == site), None)
    if found is None:
        named = ", ".join(one.site for one in there) or "none"
        raise UnknownSite(f"There is no added module {shown(site)}, whose features have names; there are: {named}.")
    return found


def _of_file(channel: Channel, module: AddedModuleDescription, path: Path) -> tuple[dict[int, str], str | None]:
    """Return the names in a file, and a note on them."""
    read = read_names(path, module.features, int(module.site.rpartition(".")[2]))
    notes = [note_on(path, "modelId", one, (), channel.welcome.model) for one in read.models]
    cut = f"{read.cut:,} name{' was' if read.cut == 1 else 's were'} cut to {LONGEST} characters"
    notes += [cut] if read.cut else []
    return read.names, "; ".join(one for one in notes if one is not None) or None


def _checked(module: AddedModuleDescription, feature: int) -> int:
    if not 0 <= feature < module.features:
        raise UsageError(f"{module.site} has {module.features:,} features, from 0, and no feature {feature}.")
    return feature


def add_adapter(channel: Channel, name: str, folder: str | Path) -> AdapterDescription:
    """Add the adapter in a folder, and return its description."""
    found = read_adapter(given_path(folder, "folder"))
    note = note_on(found.path, "base_model_name_or_path", found.model, found.unknown, channel.welcome.model)
    with temporary_session(channel, "adapter") as session:
        request = ask.AddAdapter(
            session=session, name=name, modules=found.modules, folder=str(found.path), digest=found.digest
        )
        adapter = ask_for(channel, request).adapter
    return msgspec.structs.replace(adapter, note=note)
