"""Collections, folders and labels as they are given to a training."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from djinn_jupyter.client.arguments import shown
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations

GivenCollection = Activations | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Numbers, and where these are places among classes, their names."""

    numbers: tuple[float, ...]
    classes: tuple[str, ...]


def labels_given(labels: object) -> Labels:
    """Return labels as numbers: texts, whole numbers and truth values are classes, in their order. Raises UsageError
    for a mixture, for one class, and for what is no list."""
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
