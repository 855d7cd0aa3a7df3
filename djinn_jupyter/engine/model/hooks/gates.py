"""A gate on every decoder layer: leave a forward pass at a layer, enter one at a layer.

A gate replaces that layer's `forward`. Without `PassHooks` it is the plain layer. With them, layers below their
frame return their input in the form that the layer returns (some return a tuple, and eight or more layers notice the
difference), the frame's hidden state enters at its boundary, and every later boundary is reported to them,
and they may raise `Leave`.

Knows nothing of sessions, breakpoints or pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from djinn_jupyter.engine.model.hooks.call_forms import LayerForm, replace_argument


class Leave(BaseException):
    """Raised by the hooks to leave the forward pass. Not an error; a BaseException, so that model code does not catch
    it."""


class PassHooks(Protocol):
    """The hooks of one entry into a forward pass.

    `arrive` is called with the hidden state at each newly reached boundary and returns the one to continue with.
    `about_to_run` is called before each layer runs, with the hidden state it gets and the layer's keyword arguments;
    `has_run` with the layer's output. `given` returns, by argument, the values that the layer at `boundary` needs
    besides the hidden state from the layer before it, which is skipped."""

    boundary: int
    hidden: Tensor | None

    def given(self) -> Mapping[int | str, Any]: ...

    def arrive(self, boundary: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor: ...

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
        """Give the model's forward to `hooks` inside this block, and its layers to `run_layer`. Nests: a lens runs
        in the midst of a pass."""
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
                hidden = hooks.arrive(index, given, kwargs)
            hooks.about_to_run(index, hidden, kwargs)
            args, kwargs = form.put(args, kwargs, hidden)
            output = self._run_layer(index, run, args, kwargs)
            hooks.has_run(index, output)
            if not last:
                return output
            after = form.unwrap(output)
            return form.rewrap(output, hooks.arrive(index + 1, after, kwargs))

        return gate


def _run_plainly(index: int, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run(*args, **kwargs)
