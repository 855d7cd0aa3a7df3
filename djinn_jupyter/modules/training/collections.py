"""Collections, folders and labels in the form of a training."""

from __future__ import annotations

import hashlib
import json
import numbers
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from djinn_jupyter._version import __version__
from djinn_jupyter.api.arguments import shown
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.modules.training.jobs import AnyJob

GivenCollection = Activations | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Numbers, and the names of their classes where they are class indices."""

    numbers: tuple[float, ...]
    classes: tuple[str, ...]


def labels_given(labels: object) -> Labels:
    """Return labels as numbers: texts, whole numbers and truth values are classes, in their order. Raises UsageError
    for a mixture, for one class, and for any other value than a list."""
    found = _listed(labels)
    kinds = {_kind(one) for one in found}
    if len(kinds) != 1 or None in kinds:
        odd = next((one for one in found if _kind(one) is None), found[0])
        raise UsageError(
            f"Labels are texts, or whole numbers, or truth values, or other numbers; {shown(odd)} is amiss."
        )
    if kinds == {"number"}:
        return Labels(numbers=tuple(map(float, found)), classes=())
    classes = sorted(set(found))
    if len(classes) < 2:
        raise UsageError(f"All labels are {shown(classes[0])}; there have to be two classes at least.")
    places = {name: float(place) for place, name in enumerate(classes)}
    return Labels(numbers=tuple(places[one] for one in found), classes=tuple(map(str, classes)))


def _listed(labels: Any) -> list[Any]:
    if hasattr(labels, "tolist"):  # of numpy, pandas and torch
        labels = labels.tolist()
    if not isinstance(labels, list | tuple) or not labels:
        raise UsageError(f"Labels are a list with one for each prompt, not {shown(labels)}.")
    return [one.item() if hasattr(one, "item") else one for one in labels]


def _kind(label: Any) -> str | None:
    if isinstance(label, bool):
        return "truth value"
    if isinstance(label, str):
        return "text"
    if isinstance(label, numbers.Integral):
        return "whole number"
    finite = isinstance(label, numbers.Real) and abs(float(label)) < float("inf")
    return "number" if finite else None


def collection_of(given: GivenCollection) -> Activations:
    return given if isinstance(given, Activations) else Activations(given)


# The rows of a site in a collection: one for each kept position of each prompt, as float32; and their labels.

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteRows:
    """`prompts_N` has the number of each row's prompt."""

    values_ND: Numbers
    prompts_N: Numbers


def rows_of(collection: Activations, site: str) -> SiteRows:
    """Return the rows of a site. Raises UsageError where it has no vector for each position, or NaN or infinity."""
    values = collection[site]
    counts = [len(one) if values.by_token else _positions(collection) for one in collection.tokens]
    found: Any = np.asarray(values)
    within = found.shape[1:] if values.by_token or _positions(collection) == 1 else found.shape[2:]
    if len(within) != 1:
        raise UsageError(
            f"{site} has {list(within)} for a position, and a module reads a vector: collect another site."
        )
    rows_ND = np.ascontiguousarray(found.reshape(-1, within[0]), dtype=np.float32).copy()
    if not np.isfinite(rows_ND).all():
        raise UsageError(f"{site} has NaN or infinity in this collection, so nothing can be trained on it.")
    return SiteRows(values_ND=rows_ND, prompts_N=np.repeat(np.arange(len(counts)), counts))


def labels_of(prompts_N: Numbers, labels: Sequence[float]) -> Numbers:
    """Return the label of each row, from labels for each prompt or for each row. Raises UsageError for another number
    of labels."""
    prompts = int(prompts_N[-1]) + 1
    given: Numbers = np.asarray(labels, dtype=np.float64)
    if len(labels) == prompts:
        return given[prompts_N]
    if len(labels) == len(prompts_N):
        return given
    raise UsageError(
        f"There are {len(labels):,} labels for {prompts:,} prompts with {len(prompts_N):,} positions together: "
        "give one for each prompt, or one for each position."
    )


def _positions(collection: Activations) -> int:
    """Return the kept positions of each prompt; 1 where all were kept, for prompts of any length."""
    return 1 if collection.positions is None else len(collection.positions)


# The recipe of a trained module, as JSON: the job, the collection and its model, the versions, and the outcome.

INTERRUPTED: Final = "interrupted"
PLACES: Final = ("collection", "to", "head")  # paths of this machine mean nothing on another
NAMED: Final = ("model", "positions", "dtype", "mode", "seed")
MOST_TOKENS: Final = 4096  # larger collections keep only a digest of their prompts


def provenance(
    job: AnyJob,
    collection: Activations,
    figures: Mapping[str, float],
    library: Mapping[str, str],
    processor: str,
    interrupted: Mapping[str, int] | None = None,
) -> bytes:
    """Return the recipe of what the `library` (its name and version) has computed on the `processor`, and for an
    `interrupted` training the number of steps done."""
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
    """Return whether the engine's model was collected without rules and adapters."""
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
