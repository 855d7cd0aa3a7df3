"""One layer of a recorded pass, and the arithmetic that identifies its tensors.

Shapes: all values are of the one-token probe, [B, 1, D] or the model's own form of it (B prompts, D features).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.recording import CacheCall, Call, FunctionCall, RecordedTensor, Recording


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerRecord:
    """The record of one layer: its own call `span`, the calls inside it, and the hidden state before and after."""

    span: Call
    calls: tuple[Call, ...]
    cache_calls: tuple[CacheCall, ...]
    functions: tuple[FunctionCall, ...]
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, recording: Recording, layer: nn.Module, argument: int | str) -> LayerRecord:
        span = recording.of(layer)[-1]
        before = span.inputs[argument].value
        after = span.first_output.value if span.first_output else None
        assert before is not None
        assert after is not None
        return cls(
            span=span,
            calls=tuple(call for call in recording.calls if call.inside(span)),
            cache_calls=tuple(c for c in recording.cache_calls if span.entered < c.at < span.left),
            functions=tuple(f for f in recording.functions if span.entered < f.at < span.left),
            before=before,
            after=after,
        )

    def count(self, module: nn.Module) -> int:
        return sum(call.module is module for call in self.calls)

    def shaped(self, seen: RecordedTensor | None) -> Tensor | None:
        """Return the value of `seen` in the shape of the hidden state, None if it does not fit."""
        if seen is None or seen.value is None or not seen.floating or not seen.shape:
            return None
        if seen.value.numel() != self.before.numel() or seen.shape[-1] != self.before.shape[-1]:
            return None
        return seen.value.reshape(self.before.shape)

    @cached_property
    def outputs(self) -> list[tuple[Call, Tensor]]:
        """The calls that return a tensor of the hidden state's shape, in the order they return."""
        found = [(call, value) for call in self.calls if (value := self.shaped(call.first_output)) is not None]
        return sorted(found, key=lambda pair: pair[0].left)

    @cached_property
    def inputs(self) -> list[tuple[Call, int | str, Tensor]]:
        """The arguments of the hidden state's shape, in the order they are given."""
        given = ((call, key, seen) for call in self.calls for key, seen in call.inputs.items())
        return [(call, key, value) for call, key, seen in given if (value := self.shaped(seen)) is not None]

    def makers(self, value: Tensor) -> list[Call]:
        """Return the calls that return exactly `value`, outermost first."""
        return sorted((call for call, made in self.outputs if same(made, value)), key=lambda call: call.entered)

    def maker(self, value: Tensor) -> Call | None:
        """Return the outermost call that returns `value` and has matrices: a block rather than its norm or dropout."""
        return next((call for call in self.makers(value) if has_matrix(call.module)), None)

    def uses_cache(self, call: Call) -> bool:
        return any(call.entered < c.at < call.left for c in self.cache_calls)


def has_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in module.parameters())


def adds(one: Tensor, other: Tensor, total: Tensor) -> bool:
    """True where `one + other`, summed in the widest dtype of the three, is `total` bit for bit."""
    widest = torch.promote_types(torch.promote_types(one.dtype, other.dtype), total.dtype)
    return torch.equal((one.to(widest) + other.to(widest)).to(total.dtype), total)


def scale_of(one: Tensor, other: Tensor, total: Tensor) -> float | None:
    """Return the factor c of at most 7 digits with `one + c * other == total` bit for bit, None if there is none."""
    a, b, sum_ = one.double(), other.double(), total.double()
    power = float((b * b).sum())
    if power == 0.0:
        return None
    factor = float(((sum_ - a) * b).sum()) / power
    for digits in range(1, 8):
        rounded = float(f"{factor:.{digits}g}")
        if rounded and adds(one, other * rounded, total):
            return rounded
    return None
