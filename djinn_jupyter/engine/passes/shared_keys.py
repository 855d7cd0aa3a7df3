"""Keys and values that a layer hands on, for layers above to read in place of their own.

They are handed on in a mapping among the layers' arguments. The entries that a layer makes and the one that it reads
are learned from calls of the layers, by identity: what attention gets is what lies in the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.gates import Arguments
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.sections import NotPacked
from djinn_jupyter.engine.passes.shared_cache import KeyValues
from djinn_jupyter.engine.system.device import to_home


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """An entry of the mapping that is the keyword `argument` of layers."""

    argument: str
    key: Any


Entries = dict[SharedEntry, KeyValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """The entries that a layer has `made`, and the one that it has `read`, None where it attends to keys of its own."""

    made: tuple[SharedEntry, ...] = ()
    read: SharedEntry | None = None


class SharedKeys:
    """The handing on of keys and values in a model of these layers, the lowest first."""

    def __init__(self, forward: Forward, handings: Sequence[Handing]) -> None:
        self._forward, self._handings = forward, handings

    def made(self, layer: int) -> tuple[SharedEntry, ...]:
        return self._handings[layer].made

    def read(self, layer: int) -> SharedEntry | None:
        return self._handings[layer].read

    def cache_layer(self, layer: int) -> int:
        """Return the layer of the cache with the base's rows of what a layer attends to."""
        read = self.read(layer)
        return self._own(layer if read is None else self._maker(read, layer))

    def handed_to(self, boundary: int) -> dict[SharedEntry, int]:
        """Return the entries that layers below have made and others above read, with their layers of the cache."""
        read = {one for layer in range(boundary, len(self._handings)) if (one := self.read(layer)) is not None}
        below = {entry for layer in range(boundary) for entry in self.made(layer)}
        return {entry: self._own(self._maker(entry, boundary)) for entry in read & below}

    def _maker(self, entry: SharedEntry, below: int) -> int:
        return max(layer for layer in range(below) if entry in self.made(layer))

    def _own(self, layer: int) -> int:
        return self._forward.anatomy.cache_layers_of(layer)[0]


class MappingWatch:
    """Watches the mappings among a layer's `arguments` while it runs, as far as its attention."""

    def __init__(self, arguments: Arguments, names: Iterable[str]) -> None:
        self._mappings = {name: arguments[1][name] for name in names if name in arguments[1]}
        self._before = dict(self._entries())

    def seen(self, layer: int, attended: KeyValues, own: bool) -> Handing:
        """Return the handing on of `layer`, whose attention gets these keys and values; `own`: it makes some. Raises
        NotPacked for any other."""
        entries = dict(self._entries())
        made = tuple(entry for entry, value in entries.items() if value is not self._before.get(entry))
        if not all(_holds(entries[entry], attended) for entry in made):
            raise NotPacked(f"layer {layer} hands on more than its keys and values")
        if own:
            return Handing(made=made)
        read = next((entry for entry, value in self._before.items() if _holds(value, attended)), None)
        if read is None:
            raise NotPacked(f"layer {layer} attends to keys that no layer hands on")
        return Handing(made=made, read=read)

    def _entries(self) -> Iterable[tuple[SharedEntry, Any]]:
        return ((SharedEntry(name, key), value) for name, one in self._mappings.items() for key, value in one.items())


def mapping_like(mapping: MutableMapping[Any, Any], entries: Entries) -> MutableMapping[Any, Any]:
    """Return a mapping of the same kind with these entries alone."""
    fresh = copy(mapping)
    fresh.clear()
    fresh.update({entry.key: rows for entry, rows in entries.items()})
    return fresh


def each_of(rows: Entries, change: Any) -> Entries:
    """Return the same entries with their keys and values changed."""
    return {entry: (change(keys), change(values)) for entry, (keys, values) in rows.items()}


def joined(some: Entries, others: Entries) -> Entries:
    """Return the keys and values [B, H, n, D] of some lines and of others, which have the same entries."""
    return {
        entry: (_cat(keys, others[entry][0]), _cat(values, others[entry][1])) for entry, (keys, values) in some.items()
    }


def of_base(base: KeyValues, start: int) -> KeyValues:
    """Return the base's rows [1, H, n, D] from `start` on."""
    return base[0][:, :, start:], base[1][:, :, start:]


def first_other_keys(rows: KeyValues, base: KeyValues) -> int | None:
    """Return the first position at which keys or values [1, H, S, D] have another bit than the base's, None where none
    has."""
    found = (torch.nonzero((own != other).any(3).any(1)[0]) for own, other in zip(rows, base, strict=True))
    return min((int(at[0]) for at in found if len(at)), default=None)


def _cat(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([to_home(one, other.device), other])


def _holds(value: Any, attended: KeyValues) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == len(attended)
        and all(one is other for one, other in zip(value, attended, strict=True))
    )
