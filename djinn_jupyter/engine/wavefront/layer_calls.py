"""The arguments of every layer for lines whose rows are [start, end), as the model's own forward makes them.

Masks, rotary tables, biases of distance and inputs by layer come from the model, once a group of lines and for one
line; for several, the axis that counts lines is found by asking for two, and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.call_forms import Arguments
from djinn_jupyter.engine.wavefront.shared_cache import SharedCache

Path = tuple[int | str, ...]
Axes = Mapping[Path, int]
Structure = tuple[tuple[Path, int], ...]
Tensors = dict[Path, Tensor]


class ArgumentAxes:
    """The axes that count lines, by the structure of the arguments; learned from the model once for each."""

    def __init__(self) -> None:
        self._known: dict[Structure, Axes] = {}

    def of(self, one: Sequence[Tensors], two: Callable[[], list[Arguments]]) -> Axes:
        """Return the axes of each layer's tensors `one`, by the layer and their paths; `two` returns the arguments for
        two lines, where they are not known."""
        by_path = {(layer, *path): tensor for layer, tensors in enumerate(one) for path, tensor in tensors.items()}
        structure = tuple((path, tensor.ndim) for path, tensor in by_path.items())
        if structure not in self._known:
            doubled = dict(tensors_by_path(two(), ()))
            self._known[structure] = {
                path: axis
                for path, tensor in by_path.items()
                if (axis := _grown(tensor, doubled.get(path, tensor))) is not None
            }
        return self._known[structure]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCalls:
    """Calls layers for lines with `length` rows from `cache.start` on."""

    forward: Forward
    cache: SharedCache
    length: int
    arguments: list[Arguments]
    tensors: list[Tensors]  # among each layer's arguments
    axes: Axes

    @classmethod
    def of(cls, forward: Forward, tokens: tuple[int, ...], cache: SharedCache, axes: ArgumentAxes) -> LayerCalls:
        one = forward.layer_arguments(tokens, cache.start, cache, lines=1)
        tensors = [dict(tensors_by_path(given, ())) for given in one]
        found = axes.of(tensors, lambda: forward.layer_arguments(tokens, cache.start, cache, lines=2))
        return cls(
            forward=forward,
            cache=cache,
            length=len(tokens) - cache.start,
            arguments=one,
            tensors=tensors,
            axes=found,
        )

    def call(self, layer: int, hidden_BnD: Tensor) -> Tensor:
        """Return the hidden states of all lines after `layer`."""
        anatomy = self.forward.anatomy
        form = anatomy.forms[layer]
        args, kwargs = _repeated(self.arguments[layer], (layer,), self.axes, hidden_BnD.shape[0])
        args, kwargs = form.put(args, kwargs, anatomy.of_lines(hidden_BnD))
        return anatomy.by_line(form.unwrap(anatomy.layers[layer](*args, **kwargs)))

    def tensor(self, layer: int, path: Path, lines: int) -> Tensor | None:
        """Return one of a layer's arguments for so many lines, None where the layer is given none."""
        value = self.tensors[layer].get(path)
        repeated: Tensor | None = _repeated(value, (layer, *path), self.axes, lines)
        return repeated


def tensors_by_path(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_by_path(part, (*path, key))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from tensors_by_path(part, (*path, index))


def _grown(one: Tensor, two: Tensor) -> int | None:
    """Return the axis along which `two` is twice as long, None where none is."""
    if one.ndim != two.ndim:
        return None
    return next((axis for axis in range(one.ndim) if two.shape[axis] == 2 * one.shape[axis]), None)


def _repeated(value: Any, path: Path, axes: Axes, lines: int) -> Any:
    """Return the same arguments for `lines` lines; lines are the outer part of an axis that they share."""
    if isinstance(value, Tensor):
        axis = axes.get(path)
        if axis is None or lines == 1:
            return value
        if value.shape[axis] == 1:
            return value.expand(*(lines if i == axis else -1 for i in range(value.ndim)))
        return value.repeat(*(lines if i == axis else 1 for i in range(value.ndim)))
    if isinstance(value, dict):
        return {key: _repeated(part, (*path, key), axes, lines) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_repeated(part, (*path, index), axes, lines) for index, part in enumerate(value))
    return value
