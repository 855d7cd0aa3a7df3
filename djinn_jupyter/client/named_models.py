"""Compare the model that the files of a module or an adapter name with the model of the engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import ModelDescription

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
}  # part of a model's name, and how the names of its architectures begin
HUB_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
SAME: Final = {"gpt2small": "gpt2"}  # TransformerLens's names


def note_on(where: Path, field: str, named: str | None, unknown: Sequence[str], here: ModelDescription) -> str | None:
    """Return what is told once of files in a folder: the name of another model, where it can be the engine's own, and
    fields that nothing here knows. Raises UsageError, which names the `field`, where the model is another one."""
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
    """Return whether a name is that of another model for sure: of another family, or where no family is known another
    name on the hub."""
    families = [begin for word, begin in FAMILIES.items() if word in _plain(named)]
    if families:
        return not any(here.architecture.startswith(begin) for begin in families)
    one, other = _plain(named), _plain(here.name)
    on_hub = all(HUB_NAME.fullmatch(name) and not Path(name).exists() for name in (named, here.name))
    return on_hub and one not in other and other not in one


def _plain(name: str) -> str:
    """Return the last word of a model's name without case and signs; `gemma-v3` is `gemma-3`."""
    last = name.rstrip("/").rpartition("/")[2].lower().replace("-v", "-")
    plain = re.sub(r"[^a-z0-9]", "", last)
    return SAME.get(plain, plain)
