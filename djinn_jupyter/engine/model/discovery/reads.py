"""Values that nothing reads: the operations of a probe, followed back from its logits and its cache.

An edit of such a value would change nothing. What code reads of a tensor without an operation (its dtype, its device)
is no reading of its value. Kernels that PyTorch does not dispatch are not seen, so a pass in which all such values are
changed has to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Cache

from djinn_jupyter.engine.model.discovery.recording import Call, Hook, Recording, storage_of
from djinn_jupyter.engine.model.hooks.call_forms import TensorKey, given_at, pick, replace_argument, swap

Border = tuple[nn.Module, str, TensorKey]
"""A module, `input` or `output`, and the key of a tensor there."""
_LIFTED: Final = torch.ops.aten.lift_fresh.default
"""Returns the tensor that it is given, which `torch.tensor` made without an operation, maybe at a freed address."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The storages that one operation read and wrote, and those of the written ones that it made."""

    at: int
    read: frozenset[int]
    written: frozenset[int]
    made: frozenset[int]


class RecordedOperations(TorchDispatchMode):
    """Notes each operation that PyTorch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded: list[Operation] = []

    def of(self, recording: Recording) -> RecordedOperations:
        """Return the mode for the pass of this recording."""
        self._recording = recording
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _storages([] if func is _LIFTED else [args, kwargs])
        result = func(*args, **(kwargs or {}))
        changed = _storages(a for a, of in zip(args, func._schema.arguments, strict=False) if _is_written(of))
        returned = _storages(result)
        self.recorded.append(Operation(self._recording.tick(), given, returned | changed, returned - given))
        return result


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _storages(values: Any) -> frozenset[int]:
    return frozenset(storage_of(one) for one in tree_leaves(values) if isinstance(one, Tensor))


def tensors_of(cache: Cache) -> list[Tensor]:
    """Return the tensors that a cache holds."""
    return [one for layer in cache.layers for one in tree_leaves(vars(layer)) if isinstance(one, Tensor)]


def mark_unread(recording: Recording, operations: Iterable[Operation], left: Iterable[Tensor]) -> None:
    """Mark the tensors at the borders of modules that do not reach the tensors `left` by the pass."""
    live = {storage_of(tensor) for tensor in left}
    within: list[Call] = []
    for event in _backwards(recording, operations):
        if isinstance(event, Operation):
            if not event.written or event.written & live:  # one that makes no tensor decides what code does next
                live = (live - event.made) | event.read
                _mark(within, event.read)
        elif event in within:
            within.remove(event)
        else:
            within.append(event)
            for seen in event.outputs.values():
                seen.read = seen.storage in live
            for seen in event.inputs.values():
                seen.read = any(seen.storage == made.storage and made.read for made in event.outputs.values())


def _backwards(recording: Recording, operations: Iterable[Operation]) -> Iterator[Operation | Call]:
    """Yield the operations from the last to the first, and each call twice: where it was left, and entered."""
    moments: dict[int, Operation | Call] = {operation.at: operation for operation in operations}
    moments |= {call.entered: call for call in recording.calls} | {call.left: call for call in recording.calls}
    for at in sorted(moments, reverse=True):
        yield moments[at]


def _mark(within: Iterable[Call], read: frozenset[int]) -> None:
    for call in within:
        for seen in call.inputs.values():
            seen.read = seen.read or seen.storage in read


def unread(recording: Recording) -> list[Border]:
    """Return the borders that carry numbers and were marked in each call of their module."""
    found: dict[Border, bool] = {}
    for call in recording.calls:
        for side, border in (("input", call.inputs), ("output", call.outputs)):
            for key, seen in border.items():
                place = call.module, side, key
                found[place] = found.get(place, True) and seen.floating and not seen.read
    return [place for place, is_unread in found.items() if is_unread]


def changing(borders: Iterable[Border]) -> Iterator[Hook]:
    """Yield hooks that put other numbers there."""
    for module, side, key in borders:
        yield (module, _given_other(key), None) if side == "input" else (module, None, _made_other(key))


def _given_other(key: TensorKey) -> Callable[..., Any]:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return replace_argument(args, kwargs, key, 1 - given_at(key, args, kwargs))

    return before


def _made_other(key: TensorKey) -> Callable[..., Any]:
    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return swap(output, key, 1 - pick(output, key))

    return after
