"""The containers that modules take and return: find the tensor in one, put another back in the same form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
TensorKey = int | str | None
"""A tensor's place: a position, a keyword, or None when it is the whole output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerForm:
    """The form in which one decoder layer takes its hidden state and returns it.

    `argument` is the hidden state's position among the arguments or its keyword. `length` is the length of the returned
    tuple, with the hidden state first; None for a bare tensor. Skipped layers must return this same form.
    """

    argument: int | str
    length: int | None

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        given: Tensor = args[self.argument] if isinstance(self.argument, int) else kwargs[self.argument]
        return given

    def put(self, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor) -> Arguments:
        return replace_argument(args, kwargs, self.argument, hidden)

    def wrap(self, hidden: Tensor) -> Any:
        """Return `hidden` in the form that this layer returns; for a skipped layer."""
        return hidden if self.length is None else (hidden, *[None] * (self.length - 1))

    def unwrap(self, output: Any) -> Tensor:
        hidden: Tensor = output if self.length is None else output[0]
        return hidden

    def rewrap(self, output: Any, hidden: Tensor) -> Any:
        return hidden if self.length is None else (hidden, *output[1:])


def replace_argument(args: tuple[Any, ...], kwargs: dict[str, Any], argument: TensorKey, value: Any) -> Arguments:
    """Return the same arguments with another value at a position or keyword."""
    if isinstance(argument, int):
        return (*args[:argument], value, *args[argument + 1 :]), kwargs
    return args, {**kwargs, str(argument): value}


def tensors_in(container: Any) -> Iterator[tuple[TensorKey, Tensor]]:
    """Yield the tensors of a module's output with their keys, first level only."""
    if isinstance(container, Tensor):
        yield None, container
    elif isinstance(container, Mapping):
        yield from ((str(key), value) for key, value in container.items() if isinstance(value, Tensor))
    elif isinstance(container, tuple | list):
        yield from ((index, value) for index, value in enumerate(container) if isinstance(value, Tensor))


def arguments_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[int | str, Tensor]]:
    """Yield the tensors among a module's arguments with their keys."""
    yield from ((index, value) for index, value in enumerate(args) if isinstance(value, Tensor))
    yield from ((key, value) for key, value in kwargs.items() if isinstance(value, Tensor))


def given_at(key: TensorKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the tensor at a place of a call's arguments."""
    given: Tensor = args[key] if isinstance(key, int) else kwargs[str(key)]
    return given


def pick(container: Any, key: TensorKey) -> Tensor:
    tensor: Tensor = container if key is None else container[key]
    return tensor


def swap(container: Any, key: TensorKey, tensor: Tensor) -> Any:
    """Return the same container with another tensor at `key`. Mappings (model outputs) are changed in place."""
    if key is None:
        return tensor
    if isinstance(key, str):
        container[key] = tensor
        return container
    parts = [*container[:key], tensor, *container[key + 1 :]]
    return type(container)(*parts) if hasattr(container, "_fields") else type(container)(parts)
