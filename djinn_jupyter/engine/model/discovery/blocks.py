"""Find the blocks of a layer by arithmetic on its residual stream: which tensors were added, bit for bit.

A layer is `two` blocks one after the other (with a residual between them), `parallel` blocks added at once, or `one`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Literal

from torch import Tensor

from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.layer_record import (
    LayerRecord,
    adds,
    has_matrix,
    scale_of,
)
from djinn_jupyter.engine.model.discovery.recording import Call

BlockKind = Literal["two", "parallel", "one", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockContribution:
    """The tensor that a block adds: `block` makes it; `post` is the norm before the sum; `scale` a factor there."""

    value: Tensor
    block: Call | None
    post: Call | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """`mid` is the earliest (call, argument) that gets the residual between two blocks.

    `second` is None where the sum of two outputs is added (routed and shared experts).
    """

    kind: BlockKind
    mid: tuple[Call, int | str] | None = None
    first: BlockContribution | None = None
    second: BlockContribution | None = None


def find_blocks(record: LayerRecord, *, edited: bool = False) -> Blocks:
    """Find the blocks of a layer, whose residual between two may have been `edited`: then nothing tells the first."""
    return (
        _two(record, exact=True, edited=edited)
        or _parallel(record)
        or _one(record)
        or _two(record, exact=False, edited=edited)
        or _unknown()
    )


def _unknown() -> Blocks:
    return Blocks(kind="unknown")


def _factor(one: Tensor, other: Tensor, total: Tensor, exact: bool) -> float | None:
    if exact:
        return 1.0 if adds(one, other, total) else None
    return scale_of(one, other, total)


def _two(record: LayerRecord, exact: bool, edited: bool) -> Blocks | None:
    tried: list[Tensor] = []
    for call, key, residual in record.inputs:
        if any(same(residual, value) for value in (record.before, record.after, *tried)):
            continue
        tried.append(residual)
        later = _distinct(value for other, value in record.outputs if other.left > call.entered)
        factors = [(value, _factor(residual, value, record.after, exact)) for value in later]
        added = next(((value, factor) for value, factor in factors if factor is not None), None)
        if added is not None:
            second = _contribution(record, *added)
        elif any(_factor(residual, one + other, record.after, exact) for one, other in combinations(later, 2)):
            second = None
        else:
            continue
        first = _first(record, residual, call)
        if first is None and not edited and _has_blocks_before(record, call):
            continue
        return Blocks(kind="two", mid=(call, key), first=first, second=second)
    return None


def _distinct(values: Iterable[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if not any(same(value, other) for other in found):
            found.append(value)
    return found


def _first(record: LayerRecord, residual: Tensor, mid: Call) -> BlockContribution | None:
    """Return the contribution that, added to the layer's input, makes the residual in the middle."""
    earlier = [value for call, value in record.outputs if call.left < mid.entered]
    for exact in (True, False):
        for value in earlier:
            factor = _factor(record.before, value, residual, exact)
            if factor is not None:
                return _contribution(record, value, factor)
    return None


def _has_blocks_before(record: LayerRecord, mid: Call) -> bool:
    """Return whether a residual behind a first block is given to a call before this one, as in layers of three."""
    earlier = [(call, value) for call, _, value in record.inputs if call.entered < mid.entered]
    return any(not same(value, record.before) and _first(record, value, call) is not None for call, value in earlier)


def _parallel(record: LayerRecord) -> Blocks | None:
    """Find two blocks added to the same residual, in either order; the one that uses the cache is listed first."""
    made = _distinct(value for call, value in record.outputs if has_matrix(call.module))
    for one, other in permutations(made, 2):
        if adds(record.before + one, other, record.after) or adds(one + other, record.before, record.after):
            pair = [_contribution(record, one), _contribution(record, other)]
            pair.sort(key=lambda c: c.block is not None and record.uses_cache(c.block), reverse=True)
            return Blocks(kind="parallel", first=pair[0], second=pair[1])
    return None


def _one(record: LayerRecord) -> Blocks | None:
    for exact in (True, False):
        for _, value in record.outputs:
            factor = _factor(record.before, value, record.after, exact)
            if factor is not None:
                return Blocks(kind="one", first=_contribution(record, value, factor))
    return None


def _contribution(record: LayerRecord, value: Tensor, scale: float = 1.0) -> BlockContribution:
    block = record.maker(value)
    if block is not None:
        return BlockContribution(value=value, block=block, scale=scale)
    post = record.makers(value)[0]
    raw = next((shaped for seen in post.inputs.values() if (shaped := record.shaped(seen)) is not None), None)
    block = None if raw is None else record.maker(raw)
    return BlockContribution(value=value, block=block, post=post, scale=scale)
