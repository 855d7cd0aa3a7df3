"""Cache layers of a model's own class: rows like those of a library layer, and states beside the rows.

Tests by trial whether pages can replace the rows of such a layer. Knows no page and no model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

_EXTENDED = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
# Attributes that a library layer gains on first use.
GAINED = frozenset({"dtype", "device", "indexer_dtype", "indexer_device"})
_PLAIN = (Tensor, bool, int, float, str, type(None), torch.dtype, torch.device)


def is_own(layer: Any) -> bool:
    """True if the layer's class extends one of the library's row layers, full or with a window."""
    return _plain(layer) is not None


def own_fields(layer: Any) -> tuple[str, ...]:
    """Return the attributes that a layer's own class adds to the library layer that it extends; or none."""
    plain = _plain(layer)
    return () if plain is None else tuple(name for name in vars(layer) if name not in {*vars(plain), *GAINED})


def why_not(layer: Any) -> str | None:
    """Return why pages cannot hold the rows of this unused layer of a model's own class; None if they can."""
    plain, kind = _plain(layer), type(layer).__name__
    if plain is None:
        return "it extends neither of transformers' layers of keys and values"
    if not all(_is_plain(vars(layer)[name]) for name in own_fields(layer)):
        return f"{kind} keeps other things than tensors and numbers"
    # A class may return the keys as values too, where the model passes the same tensor for both.
    if not any(_appends(layer, plain, alike=alike) for alike in (False, True)):
        return f"{kind} returns other rows than a {type(plain).__name__} does"
    return None


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a field of a layer."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def _plain(layer: Any) -> Any:
    """Return an unused layer of the library class that the layer's own class extends; None where it extends none."""
    of_library = next((kind for kind in type(layer).__mro__ if kind.__module__ == cache_utils.__name__), None)
    if of_library not in _EXTENDED or of_library is type(layer):
        return None
    window: dict[str, Any] = {"sliding_window": layer.sliding_window} if of_library is _EXTENDED[1] else {}
    return of_library(**window)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and _is_plain(part) for key, part in value.items())
    return isinstance(value, _PLAIN)


@torch.no_grad()
def _appends(layer: Any, plain: Any, *, alike: bool) -> bool:
    """True if both return the same rows, mask sizes and lengths for passes of several sizes, beyond a window too, and
    the layer's own fields stay unchanged."""
    mine, other = copy.deepcopy(layer), copy.deepcopy(plain)
    names, generator = own_fields(layer), torch.Generator().manual_seed(0)
    window = plain.sliding_window if plain.is_sliding else 4
    for count in (3, 1, window, 2, 1):
        keys = torch.randn((1, 1, count, 2), generator=generator)
        values = keys if alike else torch.randn((1, 1, count, 2), generator=generator)
        if mine.get_mask_sizes(count) != other.get_mask_sizes(count):
            return False
        found, due = mine.update(keys, values), other.update(keys, values)
        if not all(torch.equal(one, two) for one, two in zip(found, due, strict=True)):
            return False
        if mine.get_seq_length() != other.get_seq_length():
            return False
    return all(_same(vars(mine)[name], vars(layer)[name]) for name in names)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(part, other[key]) for key, part in one.items())
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other) and not isinstance(one, Tensor) and not isinstance(other, Tensor)
