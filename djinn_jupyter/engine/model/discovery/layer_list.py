"""Find the decoder layers: the list whose elements run once each, in order, each on the output of the one before."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.discovery.recording import (
    Call,
    Hook,
    KeepLast,
    Recording,
    check_finite,
    record,
    ways_to_keep_last,
)
from djinn_jupyter.engine.model.hooks.gates import LayerForm, TensorKey
from djinn_jupyter.errors import ModelRefused

Handed = tuple[TensorKey, int | str]
"""The key of a tensor that a layer returns besides the hidden state, and the argument that gives it to the next
one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """The decoder layers with their paths, and how each takes and returns the hidden state.

    Layers are counted in running order. `absent` are the paths of elements of their list that a text pass does not
    run."""

    paths: tuple[str, ...]
    absent: tuple[str, ...]
    layers: tuple[nn.Module, ...]
    forms: tuple[LayerForm, ...]
    mappings: tuple[str, ...]  # keyword arguments whose contents change while the layers run
    handed: tuple[Handed, ...]
    keep_last: KeepLast  # the argument for the last logits only, with all positions in every layer
    dtypes: tuple[torch.dtype, ...]  # of the hidden state before each layer, and after the last

    def spans(self, recording: Recording) -> list[Call]:
        return [recording.of(layer)[0] for layer in self.layers]

    def stage_of(self, at: int, spans: list[Call]) -> int | None:
        """Return the layer that runs at event `at`: -1 before the first, n in layer n, the count after all, else
        None."""
        if at < spans[0].entered:
            return -1
        if at > spans[-1].left:
            return len(spans)
        return next((n for n, span in enumerate(spans) if span.entered <= at <= span.left), None)


class _Thinned(ModelRefused):
    """Positions were dropped between two layers."""


def find_stack(model: PreTrainedModel, tokens_BT: Tensor) -> tuple[Stack, Recording]:
    """Return the layers of `model` and the recording of the pass that found them. ModelRefused gives the reason."""
    *ways, last_way = ways_to_keep_last(model)
    for way in ways:
        try:
            return _find(model, tokens_BT, way)
        except _Thinned:
            continue
    return _find(model, tokens_BT, last_way)


def _find(model: PreTrainedModel, tokens_BT: Tensor, keep_last: KeepLast) -> tuple[Stack, Recording]:
    lists = _outermost_lists(model)
    elements = {element for _, group in lists for element in group}
    mappings = _MappingWatch()
    name = type(model).__name__
    try:
        recording = record(
            model,
            tokens_BT,
            keep=elements.__contains__,
            hooks=lambda recording: (hook for element in elements for hook in mappings.hooks(element)),
            keep_last=keep_last,
        )
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ModelRefused.inexact(name, f"it does not run with the standard cache of transformers: {error}") from error
    if not recording.cache_calls:
        raise ModelRefused.inexact(name, "it keeps nothing in the cache it is given")
    path, group = _with_cache(name, lists, recording)
    elements_by_path = {f"{path}.{index}": element for index, element in enumerate(group)}
    run = {where: element for where, element in elements_by_path.items() if recording.of(element)}
    check_finite(model, run, recording)
    spans = _spans(name, path, run, recording)
    forms = _forms(name, list(run), spans)
    _check_gathered(name, list(run), spans, forms)
    stack = Stack(
        paths=tuple(run),
        absent=tuple(where for where in elements_by_path if where not in run),
        layers=tuple(run.values()),
        forms=forms,
        mappings=mappings.changed(),
        handed=_handed(spans),
        keep_last=keep_last,
        dtypes=_dtypes(spans, forms),
    )
    return stack, recording


def _outermost_lists(model: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    found: list[tuple[str, nn.ModuleList]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{outer}.") for outer, _ in found):
            found.append((path, module))
    return found


def _with_cache(name: str, lists: list[tuple[str, nn.ModuleList]], recording: Recording) -> tuple[str, nn.ModuleList]:
    """Return the list whose elements update the cache."""
    users = {module for call in recording.cache_calls for module in _enclosing(call.caller)}
    found = [(path, group) for path, group in lists if any(element in users for element in group)]
    if len(found) != 1:
        spelled = ", ".join(path for path, _ in found) or "none"
        raise ModelRefused.inexact(
            name, f"it has no single list of decoder layers (lists with layers that use the cache: {spelled})"
        )
    return found[0]


def _enclosing(call: Call | None) -> Iterator[nn.Module]:
    while call is not None:
        yield call.module
        call = call.parent


def _spans(name: str, path: str, layers: dict[str, nn.Module], recording: Recording) -> list[Call]:
    """Return the one call of each layer, in order."""
    spans: list[Call] = []
    for where, layer in layers.items():
        calls = recording.of(layer)
        if len(calls) != 1:
            raise ModelRefused.inexact(
                name,
                f"it runs its layer {where} {len(calls)} times in one pass, and only layers that run once can be "
                "stopped at",
            )
        spans.append(calls[0])
    if any(before.left > after.entered for before, after in pairwise(spans)):
        raise ModelRefused.inexact(name, f"it does not run {path} in order")
    return spans


def _forms(name: str, paths: list[str], spans: list[Call]) -> tuple[LayerForm, ...]:
    arguments = [
        _chained(name, f"{paths[index - 1]} and {paths[index]}", spans[index - 1], spans[index])
        for index in range(1, len(spans))
    ]
    first = arguments[0] if arguments else _only(spans[0])
    return tuple(
        LayerForm(argument=argument, length=_length(name, paths[index], spans[index]))
        for index, argument in enumerate([first, *arguments])
    )


def _check_gathered(name: str, paths: list[str], spans: list[Call], forms: tuple[LayerForm, ...]) -> None:
    """Raise ModelRefused where a layer gets the stacked inputs of earlier layers, which a pass resumed from a stop does
    not have. The input of the first layer is computed at every entry."""
    entered = [span.inputs[form.argument] for span, form in zip(spans, forms, strict=True)]
    for at, span in enumerate(spans):
        for pile in span.inputs.values():
            earlier = (one for one in range(1, at) if _piled(entered[one].value, pile.value))
            if (found := next(earlier, None)) is not None:
                raise ModelRefused.inexact(
                    name,
                    f"its layer {paths[at]} is also given the input of {paths[found]}, "
                    "which a pass resumed from a stop between the two has not computed",
                )


def _piled(part: Tensor | None, pile: Tensor | None) -> bool:
    """True where a tensor is one slice of another that has one axis more."""
    if part is None or pile is None or pile.ndim != part.ndim + 1:
        return False
    return any(same(part, one) for axis in range(pile.ndim) for one in pile.unbind(axis) if one.shape == part.shape)


def _dtypes(spans: list[Call], forms: tuple[LayerForm, ...]) -> tuple[torch.dtype, ...]:
    """Return the dtypes at the boundaries. A layer of Mamba may keep the residual in float32 in a model of bfloat16."""
    at_boundaries = [*(call.inputs[form.argument] for call, form in zip(spans, forms, strict=True))]
    if (last := spans[-1].first_output) is not None:
        at_boundaries.append(last)
    return tuple(seen.value.dtype for seen in at_boundaries if seen.value is not None)


def _handed(spans: list[Call]) -> tuple[Handed, ...]:
    """Return the key and argument of every tensor that a layer passes to the next one besides the hidden state."""
    return tuple(dict.fromkeys(handed for before, after in pairwise(spans) for handed in _new_to(before, after)))


def _new_to(before: Call, after: Call) -> Iterator[Handed]:
    """Yield key and argument of values besides the hidden state that `before` returns without getting, and `after`
    gets."""
    known = [seen.value for seen in before.inputs.values()]
    for made, seen in list(before.outputs.items())[1:]:
        if any(same(seen.value, old) for old in known):
            continue
        yield from ((made, given) for given, other in after.inputs.items() if same(seen.value, other.value))


def _chained(name: str, between: str, before: Call, after: Call) -> int | str:
    """Return the argument by which the layer `after` gets the output of the one before, bit for bit."""
    handed = before.first_output
    keys = [key for key, given in after.inputs.items() if handed and same(handed.value, given.value)]
    if keys:
        return keys[0]
    if any(handed and _is_end_of(given.value, handed.value) for given in after.inputs.values()):
        raise _Thinned.inexact(name, f"it drops all positions but the last between {between}")
    raise ModelRefused.inexact(name, f"it changes the hidden state between {between}")


def _is_end_of(part: Tensor | None, whole: Tensor | None) -> bool:
    """True where `part` is the last position of `whole` [B, T, D]."""
    return whole is not None and whole.ndim == 3 and whole.shape[1] > 1 and same(part, whole[:, -1:])


def _only(span: Call) -> int | str:
    """Return the argument of a lone layer that has the shape of its output."""
    shape = span.first_output.shape if span.first_output else ()
    return next(key for key, given in span.inputs.items() if given.shape == shape and given.floating)


def _length(name: str, path: str, span: Call) -> int | None:
    kind, length = span.output
    if issubclass(kind, Tensor):
        return None
    if issubclass(kind, tuple) and 0 in span.outputs:
        return int(length)
    raise ModelRefused.inexact(
        name, f"{path} returns {kind.__name__}, neither a tensor nor a tuple that begins with one"
    )


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """True where two kept values have the same bits (0.0 and -0.0 count as one)."""
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


class _MappingWatch:
    """Finds the layers' keyword arguments that are mappings whose contents change while the layers run."""

    def __init__(self) -> None:
        self._contents: dict[str, set[tuple[Any, ...]]] = {}

    def hooks(self, layer: nn.Module) -> Iterator[Hook]:
        def look(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            for name, value in kwargs.items():
                if isinstance(value, MutableMapping):
                    contents = tuple((key, id(entry)) for key, entry in value.items())
                    self._contents.setdefault(name, set()).add(contents)

        yield layer, look, None

    def changed(self) -> tuple[str, ...]:
        return tuple(name for name, contents in self._contents.items() if len(contents) > 1)
