"""A gate on every decoder layer: leave a forward pass at a layer, enter one at a layer. A gate replaces that layer's
`forward`. Without `PassHooks` it is the plain layer. With them, layers below their frame return their input in the form
that the layer returns (some return a tuple, and eight or more layers notice the difference), the frame's hidden state
enters at its boundary, and every later boundary is reported to them, and they may raise `Leave`. Knows nothing of
sessions, breakpoints or pages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.engine.system.device import make_current, to_home
from djinn_jupyter.errors import ModelRefused

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
        return given_at(self.argument, args, kwargs)

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


class Leave(BaseException):
    """Raised by the hooks to leave the forward pass. A BaseException, so that model code does not catch it."""


class PassHooks(Protocol):
    """The hooks of one entry into a forward pass.

    `arrive` is called with the hidden state at each newly reached boundary and returns the one to continue with.
    `about_to_run` is called before each layer runs, with the hidden state it gets and the layer's keyword arguments;
    `has_run` with the layer's output. `given` returns, by argument, the values that the layer at `boundary` needs
    besides the hidden state from the layer before it, which is skipped."""

    boundary: int
    hidden: Tensor | None

    def given(self) -> Mapping[int | str, Any]: ...

    def receive(self, boundary: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor: ...

    def about_to_run(self, layer: int, hidden: Tensor, kwargs: dict[str, Any]) -> None: ...

    def has_run(self, layer: int, output: Any) -> None: ...


RunLayer = Callable[[int, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a layer, given its number, its own forward and its arguments."""


class Gates:
    """The gates of one model. Installed once; they pass calls through unless `entered`."""

    def __init__(self, layers: Sequence[Any], forms: Sequence[LayerForm]) -> None:
        self._layers, self._forms = layers, forms
        self.count = len(layers)
        self.hooks: PassHooks | None = None
        self._run_layer: RunLayer = _run_plainly
        self._before = [layer.forward for layer in layers]
        for index, layer in enumerate(layers):
            layer.forward = self._gate(index, layer.forward)

    @contextmanager
    def entered(self, hooks: PassHooks, run_layer: RunLayer | None = None) -> Iterator[None]:
        """Give the model's forward to `hooks` inside this block, and its layers to `run_layer`. Nests, for a lens."""
        before = self.hooks, self._run_layer
        self.hooks, self._run_layer = hooks, run_layer or _run_plainly
        try:
            yield
        finally:
            self.hooks, self._run_layer = before

    def remove(self) -> None:
        """Restore every layer's original forward."""
        for layer, forward in zip(self._layers, self._before, strict=True):
            layer.forward = forward

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Restore every layer's original forward inside this block."""
        gated = [layer.forward for layer in self._layers]
        self.remove()
        try:
            yield
        finally:
            for layer, forward in zip(self._layers, gated, strict=True):
                layer.forward = forward

    def _gate(self, index: int, run: Callable[..., Any]) -> Callable[..., Any]:
        form = self._forms[index]
        last = index == self.count - 1

        def gate(*args: Any, **kwargs: Any) -> Any:
            hooks = self.hooks
            if hooks is None:
                return run(*args, **kwargs)
            given = form.take(args, kwargs)
            if index < hooks.boundary:
                skipped = given
                if last and hooks.hidden is not None:
                    skipped = hooks.hidden.clone()
                return form.wrap(skipped)
            if index == hooks.boundary and hooks.hidden is not None:
                hidden = hooks.hidden.clone()
                for argument, value in hooks.given().items():
                    args, kwargs = replace_argument(args, kwargs, argument, value)
            else:
                hidden = hooks.receive(index, given, kwargs)
            hooks.about_to_run(index, hidden, kwargs)
            args, kwargs = form.put(args, kwargs, hidden)
            output = self._run_layer(index, run, args, kwargs)
            hooks.has_run(index, output)
            if not last:
                return output
            after = form.unwrap(output)
            return form.rewrap(output, hooks.receive(index + 1, after, kwargs))

        return gate


def _run_plainly(index: int, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run(*args, **kwargs)


# Hooks that give each layer its arguments on the layer's own device, where a model's layers lie on several. The
# embedding, the masks, the rotary tables, the final norm and the head are on the first device, and so is what the last
# layer returns. A model whose layers are all on one device has no such hooks.


class Crossing:
    """Moves the arguments of layers to one device, `home`, each tensor once a pass. A copy lives as long as its
    original, and no longer than until the next pass."""

    def __init__(self, home: torch.device) -> None:
        self.home = home
        self._moved: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def begin(self) -> None:
        """Drop the copies of the previous pass: its tensors may have been written since."""
        self._moved.clear()

    def arguments(self, value: Any) -> Any:
        """Return arguments with their tensors on the home. Raises ModelRefused for a mapping by which layers on other
        devices share tensors: copies of it would differ."""
        if isinstance(value, Tensor):
            return self._at_home(value)
        if type(value) in (tuple, list):
            return type(value)(map(self.arguments, value))
        if isinstance(value, Mapping) and any(one.device != self.home for one in tensors_within(value)):
            raise ModelRefused("Its layers share tensors in a mapping, so they cannot lie on several devices.")
        return value

    def _at_home(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.home:
            return tensor
        key = id(tensor)
        if key not in self._moved:
            gone = weakref.ref(tensor, lambda _: self._moved.pop(key, None) and None)
            self._moved[key] = gone, to_home(tensor, self.home)
        return self._moved[key][1]


def cross(layers: Sequence[nn.Module], homes: Sequence[torch.device]) -> None:
    """Install the hooks on layers, each on the device in `homes`, in order. Each makes its own device the current one,
    including the first's: a pass that was left elsewhere has not done so."""
    first, crossings = homes[0], {home: Crossing(home) for home in homes}
    for index, (layer, home) in enumerate(zip(layers, homes, strict=True)):
        if home == first:
            layer.register_forward_pre_hook(_on(first))
        else:
            begins = homes[index - 1] != home
            layer.register_forward_pre_hook(_entering(crossings[home], begins), with_kwargs=True)
    if homes[-1] != first:
        layers[-1].register_forward_hook(_leaving(crossings[first]))


def _on(home: torch.device) -> Any:
    def enter(layer: nn.Module, args: Any) -> None:
        make_current(home)

    return enter


def _entering(crossing: Crossing, begins: bool) -> Any:
    def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        make_current(crossing.home)
        if begins:
            crossing.begin()
        moved = {
            name: value if isinstance(value, Cache) else crossing.arguments(value) for name, value in kwargs.items()
        }
        return crossing.arguments(args), moved

    return enter


def _leaving(crossing: Crossing) -> Any:
    def leave(layer: nn.Module, args: Any, output: Any) -> Any:
        make_current(crossing.home)
        crossing.begin()
        return crossing.arguments(output)

    return leave
