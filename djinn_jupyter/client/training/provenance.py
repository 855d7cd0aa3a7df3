"""The recipe of a trained module, as JSON: the job, the collection and its model, the versions, and what came out."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from djinn_jupyter._version import __version__
from djinn_jupyter.client.training.jobs import AnyJob
from djinn_jupyter.methods.datasets.api.activations import Activations

INTERRUPTED: Final = "interrupted"
PLACES: Final = ("collection", "to", "head")  # paths of this machine say nothing on another
NAMED: Final = ("model", "positions", "dtype", "mode", "seed")
MOST_TOKENS: Final = 4096  # the prompts of larger collections are known by their digest alone


def provenance(
    job: AnyJob,
    collection: Activations,
    figures: Mapping[str, float],
    library: Mapping[str, str],
    processor: str,
    interrupted: Mapping[str, int] | None = None,
) -> bytes:
    """Return the recipe of what the `library` (its name and version) has computed on the `processor`, and how many
    steps were done of a training that was `interrupted`."""
    asked = {name: value for name, value in msgspec.to_builtins(job).items() if name not in PLACES}
    note = collection.shards[0].note
    said = {
        "training": asked,
        "collection": {name: note[name] for name in NAMED}
        | {"plain": _is_plain(collection), "prompts": _prompts(collection)},
        "versions": {"djinn": __version__, **library, "python": platform.python_version()},
        "processor": processor,
        "figures": dict(figures),
        **({} if interrupted is None else {INTERRUPTED: dict(interrupted)}),
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in said.items())
    return f"{{\n{lines}\n}}\n".encode()


def _is_plain(collection: Activations) -> bool:
    """Return whether the engine's model was collected as it is, under no rule and no adapter."""
    each = [shard.made for shard in collection.shards]
    return not any(made.rules or made.adapter or made.attention for made in each)


def _prompts(collection: Activations) -> dict[str, Any]:
    prompts = [np.asarray(tokens, dtype="<i8") for tokens in collection.tokens]
    digest = hashlib.blake2b(digest_size=16)
    for tokens in prompts:
        digest.update(len(tokens).to_bytes(8, "little") + tokens.tobytes())
    count = sum(map(len, prompts))
    found: dict[str, Any] = {"count": len(prompts), "tokens": count, "digest": digest.hexdigest()}
    return found | ({"ids": [tokens.tolist() for tokens in prompts]} if count <= MOST_TOKENS else {})
