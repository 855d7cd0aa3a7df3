"""The least that stops a forward before a layer and enters it again there, for tests of in-flight rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache

from tests.engine.memory.kv.runs import Paged, forward, tokens


class Stopped(Exception):
    """Carries the input of the layer where the pass stopped."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == 8]
    return max(lists, key=lambda found: sum(p.numel() for p in found.parameters()))


@contextmanager
def gates(model: nn.Module, shape: list[int | None], first: int, hidden: Tensor | None, stop: int) -> Iterator[None]:
    """Make a pass in which layers before `first` hand their input on; layer `first` gets `hidden`; a pass leaves before
    layer `stop`."""
    layers = decoder_layers(model)
    plain = [layer.forward for layer in layers]

    def gated(index: int) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs["hidden_states"]
            if index < first:
                return given if shape[index] is None else (given, *[None] * (shape[index] - 1))
            if index == stop:
                raise Stopped(given.clone())
            if index == first and hidden is not None:
                if args:
                    args = (hidden.clone(), *args[1:])
                else:
                    kwargs["hidden_states"] = hidden.clone()
            return plain[index](*args, **kwargs)

        return run

    for index, layer in enumerate(layers):
        layer.forward = gated(index)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def returned(model: nn.Module, run: Callable[[], object]) -> list[int | None]:
    """Return the form of each decoder layer's output in a forward: its tuple's length, or None for a bare tensor."""
    seen: list[int | None] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: seen.append(len(out) if isinstance(out, tuple) else None))
        for layer in decoder_layers(model)
    ]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def shape_of(session: Paged) -> list[int | None]:
    def plain() -> None:
        forward(session.model, session.argument, DynamicCache(config=session.model.config), tokens(2))

    return returned(session.model, plain)


def stop_before(session: Paged, ids: Tensor, layer: int) -> Tensor:
    """Run up to a layer, leave, and return that layer's input."""
    cache = session.cache
    cache.reserve(cache.length, cache.length + ids.shape[1])
    cache.enter(cache.length)
    try:
        with gates(session.model, shape_of(session), 0, None, layer):
            forward(session.model, session.argument, cache, ids)
    except Stopped as stopped:
        return stopped.hidden
    raise AssertionError("the pass did not stop")


def resume(session: Paged, ids: Tensor, layer: int, hidden: Tensor) -> Tensor:
    """Enter a stopped pass at a layer, run to the end and commit; the logits of the last position."""
    cache = session.cache
    end = cache.length + ids.shape[1]
    cache.reserve(cache.length, end)
    cache.enter(cache.length)
    with gates(session.model, shape_of(session), layer, hidden, -1):
        logits = forward(session.model, session.argument, cache, ids)
    cache.commit(end)
    return logits
