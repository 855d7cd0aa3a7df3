"""A layer's call in sections: it is left between two of its modules, so that others are answered, and entered again.

Entered again, the modules that have run give what they gave before, and only what lies between them, such as sums, is
computed twice. Between sections nothing of the model is changed. Knows no family: what a layer is made of are its
modules, and whether they can be stopped between is tried on each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.call_forms import Arguments
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.system.nested import tensors_within
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.rounding import REFUSALS, equal_but_for_rounding
from djinn_jupyter.engine.wavefront.shared_cache import BaseRows, SharedCache

SECTION_WORK: Final = 0.9e9  # multiplications, 20 ms of a core by MKL: 380 rows of GPT-2, 7 % faster each than with 128
DEVICE_WORK: Final = 1e12
MOST_TOKENS: Final = 8192
MOST_OF_A_LAYER: Final = 0.5  # a module with more of its weights is parted into its own
LITTLE_OF_A_LAYER: Final = 0.01  # a module with less, as a norm, takes no time
TRIED: Final = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10))  # tokens of any vocabulary
Caught = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SectionStep:
    """A module of a layer that runs as a whole, and its weights; 0 where they are few."""

    module: Any
    weights: int


@dataclass(slots=True)
class SectionedCall:
    """One call of a layer. `outputs` are those of the steps that have run, in their order."""

    steps: Sequence[SectionStep]
    most: float  # weights of a section
    outputs: list[Any] = field(default_factory=list)
    _at: int = 0
    _run: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the outputs so far."""
        return sum(tensor.nbytes for tensor in tensors_within(self.outputs))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the steps give what they gave, and leave the call where a section is full, inside this block."""
        self._at = self._run = 0
        with ExitStack() as put_back:
            for step in self.steps:
                put_back.callback(_restore, step.module, vars(step.module).get("forward"))
                vars(step.module)["forward"] = partial(self._stepped, step.module.forward, step.weights)
            yield

    def _stepped(self, run: Callable[..., Any], weights: int, *args: Any, **kwargs: Any) -> Any:
        if self._at == len(self.outputs):
            if self._run and weights and self._run + weights > self.most:
                raise Leave
            self.outputs.append(run(*args, **kwargs))
            self._run += weights
        self._at += 1
        return self.outputs[self._at - 1]


class Sections:
    """Calls the layers of one model in sections, on a CPU and where `prove` has found that this changes nothing. It
    learns there what a call keeps of a row."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self._work = SECTION_WORK if forward.device.type == "cpu" else DEVICE_WORK
        self._steps = [tuple(steps_of(layer)) for layer in forward.anatomy.layers]
        self._cut: bool | None = None
        self._kept_of_row = 0

    def prove(self) -> Iterator[None]:
        """Run every layer whole and a step at a time, until that has been done once. Yields after a layer."""
        if self._cut is None:
            same = self.forward.device.type == "cpu" and not self.forward.weights.streamed
            if same:
                same = yield from self._runs_in_steps()
            self._cut = same  # where the request has ended before, the next one proves it

    def tokens(self) -> int:
        """Return how many tokens a batch may have so that others wait no longer than for a section of it."""
        steps = [step.weights for steps in self._steps for step in steps] if self._cut else []
        longest = max(steps, default=0) or max(map(_weights, self.forward.anatomy.layers))
        return max(1, min(MOST_TOKENS, int(self._work / max(longest, 1))))

    def kept_bytes(self, rows: int) -> int:
        """Return the bytes that a layer's call keeps between its sections, at most, where it has so many rows."""
        return rows * self._kept_of_row if self._cut else 0

    def run(
        self, layer: int, arguments: Arguments, hidden_BTD: Tensor, caught: Caught = nullcontext
    ) -> Generator[None, None, Tensor]:
        """Return the hidden states after a layer. Yields between two sections; `caught` is entered with each."""
        rows = hidden_BTD.shape[0] * hidden_BTD.shape[1]
        call = SectionedCall(self._steps[layer] if self._cut else (), self._work / rows)
        return self._called(layer, arguments, hidden_BTD, call, caught)

    @torch.inference_mode()
    def _called(
        self, layer: int, arguments: Arguments, hidden_BTD: Tensor, call: SectionedCall, caught: Caught
    ) -> Generator[None, None, Tensor]:
        anatomy = self.forward.anatomy
        form = anatomy.forms[layer]
        args, kwargs = form.put(*arguments, hidden_BTD)
        while True:
            try:
                with self.forward.shared(hidden_BTD.shape[0] * hidden_BTD.shape[1]), caught(), call.entered():
                    after: Tensor = form.unwrap(anatomy.layers[layer](*args, **kwargs))
                    return after
            except Leave:
                pass
            yield

    def _runs_in_steps(self) -> Generator[None, None, bool]:
        """Return whether every layer gives in steps what it gives as a whole. A model that takes no cache of ours, or
        not several lines, does not."""
        try:
            return (yield from self._same_in_steps())
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False

    def _same_in_steps(self) -> Generator[None, None, bool]:
        """Compare every layer's call as a whole with one in which each step is a section."""
        cache = SharedCache(self.forward.model.config, BaseRows({}), 0)
        arguments = self.forward.batch_arguments(TRIED, cache)
        hidden_BTD = self.forward.anatomy.forms[0].take(*arguments[0])
        for layer, given in enumerate(arguments):
            calls = (SectionedCall((), 0), SectionedCall(self._steps[layer], 0))
            whole, stepped = (_ended(self._called(layer, given, hidden_BTD, one, nullcontext)) for one in calls)
            if not equal_but_for_rounding(stepped.flatten(0, 1), whole.flatten(0, 1), self.forward.model.dtype):
                return False
            self._kept_of_row = max(self._kept_of_row, math.ceil(calls[1].nbytes / stepped[..., 0].numel()))
            hidden_BTD = whole
            yield
        return True


def _ended(call: Generator[None, None, Tensor]) -> Tensor:
    while True:
        try:
            next(call)
        except StopIteration as done:
            after: Tensor = done.value
            return after


def steps_of(layer: nn.Module) -> Iterator[SectionStep]:
    """Return the modules of a layer, none inside another; one with much of its weights is parted into its own."""
    every = _weights(layer)
    for module in _parted(layer, MOST_OF_A_LAYER * every):
        weights = _weights(module)
        yield SectionStep(module, weights if weights >= LITTLE_OF_A_LAYER * every else 0)


def _parted(module: nn.Module, most: float) -> Iterator[nn.Module]:
    for child in module.children():
        inner = sum(_weights(one) for one in child.children())
        listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if listed or (_weights(child) > most and inner > most):
            yield from _parted(child, most)
        else:
            yield child


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _restore(module: Any, forward: Any) -> None:
    """Give a module back the forward that it had as its own, or its class's."""
    if forward is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = forward
