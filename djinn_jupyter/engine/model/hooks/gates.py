"""A gate on every decoder layer: leave a forward pass at a layer, enter one at a layer.

A gate is that layer's `forward`. With nobody crossing it is the plain layer. While a `Crossing` is under way, layers
below its frame hand their input on in the form that layer returns (some return a tuple, and eight layers or more
notice the difference), the frame's hidden state enters at its boundary, and every later boundary is reported to the
crossing, which may raise `Leave`.

Knows nothing of sessions, breakpoints or pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from djinn_jupyter.engine.model.hooks.call_forms import LayerForm, replace_argument


class Leave(BaseException):
    """Raised by a crossing to leave the forward pass where it is. No error, and nothing that model code may catch."""


class Crossing(Protocol):
    """One entry into a forward pass.

    `arrive` is told the hidden state at each boundary that is newly reached and returns the one to go on with.
    `about_to_run` is told of each layer before it runs, with the hidden state it gets and the layer's keyword
    arguments; `has_run` of what the layer returned. `given` is, by argument, what the layer at `boundary` is to get
    beside the hidden state from the layer before it, which is skipped."""

    boundary: int
    hidden: Tensor | None

    def given(self) -> Mapping[int | str, Any]: ...

    def arrive(self, boundary: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor: ...

    def about_to_run(self, layer: int, hidden: Tensor, kwargs: dict[str, Any]) -> None: ...

    def has_run(self, layer: int, output: Any) -> None: ...


class Gates:
    """The gates of one model. Installed once; open unless `entered`."""

    def __init__(self, layers: Sequence[Any], forms: Sequence[LayerForm]) -> None:
        self._layers, self._forms = layers, forms
        self.count = len(layers)
        self.crossing: Crossing | None = None
        self._before = [layer.forward for layer in layers]
        for index, layer in enumerate(layers):
            layer.forward = self._gate(index, layer.forward)

    @contextmanager
    def entered(self, crossing: Crossing) -> Iterator[None]:
        """The model's forward belongs to `crossing` inside this block. Nests: a lens looks while a pass is under
        way."""
        before, self.crossing = self.crossing, crossing
        try:
            yield
        finally:
            self.crossing = before

    def remove(self) -> None:
        """Give every layer the forward back that it had."""
        for layer, forward in zip(self._layers, self._before, strict=True):
            layer.forward = forward

    def _gate(self, index: int, run: Callable[..., Any]) -> Callable[..., Any]:
        form = self._forms[index]
        last = index == self.count - 1

        def gate(*args: Any, **kwargs: Any) -> Any:
            crossing = self.crossing
            if crossing is None:
                return run(*args, **kwargs)
            given = form.take(args, kwargs)
            if index < crossing.boundary:
                skipped = given
                if last and crossing.hidden is not None:
                    skipped = crossing.hidden.clone()
                return form.wrap(skipped)
            if index == crossing.boundary and crossing.hidden is not None:
                hidden = crossing.hidden.clone()
                for argument, value in crossing.given().items():
                    args, kwargs = replace_argument(args, kwargs, argument, value)
            else:
                hidden = crossing.arrive(index, given, kwargs)
            crossing.about_to_run(index, hidden, kwargs)
            args, kwargs = form.put(args, kwargs, hidden)
            output = run(*args, **kwargs)
            crossing.has_run(index, output)
            if not last:
                return output
            after = form.unwrap(output)
            return form.rewrap(output, crossing.arrive(index + 1, after, kwargs))

        return gate
