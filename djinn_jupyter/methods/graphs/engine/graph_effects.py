"""The direct effects of sources (active features, errors, embeddings) on targets of an attribution graph: gradients
that go back from each target through the affine part of a line, times what each source writes.

Shapes: B targets at once, S positions, D features, A active features of all layers, C sources.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.session.added_modules import AddedModule
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.line import recording
from djinn_jupyter.methods.graphs.engine.active_features import ActiveFeatures, biases, reconstructed
from djinn_jupyter.methods.graphs.engine.frozen_line import FrozenLine

NOT_AFFINE = "This model has no attribution graph: with attention patterns and norms held, {where} is not affine."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTarget:
    """An output, whose gradient behind the last layer is `behind_1SD`, or the active feature of this `number`."""

    behind_1SD: Tensor | None = None
    number: int | None = None


class GraphEffects:
    """A line's sources, and their effects. `features` are by layer; sources are numbered: features, then errors by
    layer and position, then embeddings by position."""

    def __init__(self, line: FrozenLine, modules: Sequence[AddedModule]) -> None:
        self.line, self.modules = line, modules
        with recording(False):
            reads = [(one, self._value(one.layer, line.read[one.layer])) for one in modules]
            self.features = [ActiveFeatures.of(one, x_SD) for one, x_SD in reads]
            self.errors = [self._error(layer) for layer in range(len(line.taps))]
        self.active = sum(map(len, self.features))
        self.length = line.arguments.entry_1SD.shape[1]
        self.sources = self.active + (len(self.errors) + 1) * self.length
        starts = [0]
        for one in self.features:
            starts.append(starts[-1] + len(one))
        self._starts = starts

    def place(self, number: int) -> tuple[ActiveFeatures, int]:
        """Return the features of the layer of an active feature, and its number among them."""
        at = next(at for at, start in enumerate(self._starts[1:]) if number < start)
        return self.features[at], number - self._starts[at]

    def affine(self) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Return what each active feature has before its activation without any source, float64 [A], and the logits
        [V]. Raises UsageError where halfway between that and the line's own values lies something else."""
        line = self.line
        with recording(False):
            given = [line.given(layer) for layer in range(len(line.taps))]
            none = [biases(self.modules, layer, value) for layer, value in enumerate(given)]
            middle = [(one + other) / 2 for one, other in zip(given, none, strict=True)]
            entry = line.arguments.entry_1SD
        nothing, logits_V = yield from line.onward(torch.zeros_like(entry), none.__getitem__)
        half, half_V = yield from line.onward(entry / 2, middle.__getitem__)
        with recording(False):
            for layer, own in enumerate(line.read):
                if own is not None:
                    _require_middle(own, nothing[layer], half[layer], f"what layer {layer} reads")
            _require_middle(line.logits_V, logits_V, half_V, "the readout")
            each = [one.bias_before(self._value(one.layer, nothing[one.layer])) for one in self.features]
            return torch.cat([*each, torch.zeros(0, dtype=torch.float64, device=entry.device)]), logits_V

    def rows(self, targets: Sequence[GraphTarget]) -> Generator[None, None, Tensor]:
        """Return the effects of every source on each target, float32 [B, C]; a layer a step."""
        line, entry = self.line, self.line.arguments.entry_1SD
        with recording(False):
            found_BC = torch.zeros(len(targets), self.sources, device=entry.device)
            behind = [torch.zeros_like(entry) if one.behind_1SD is None else one.behind_1SD for one in targets]
            flowing = torch.stack([one.to(entry.dtype) for one in behind])
        for layer in reversed(range(len(line.taps))):
            ran = line.run(layer, entry, line.given(layer), graph=True)
            outputs, gradients = [ran.after_1SD], [flowing]
            if ran.read is not None:
                outputs, gradients = [*outputs, ran.read], [*gradients, self._seeds(targets, layer, ran.read)]
            by_entry, by_given = _pulled(outputs, [ran.entry_1SD, ran.given], gradients)
            with recording(False):
                flowing = torch.zeros_like(flowing) if by_entry is None else by_entry
                if by_given is not None:
                    self._add(found_BC, layer, by_given)
            yield
        with recording(False):
            found_BC[:, -self.length :] = (flowing[:, 0].float() * entry[0].float()).sum(-1)
        return found_BC

    def behind(self, by_logits_V: Tensor) -> GraphTarget:
        """Return the output with these derivatives [V] by the logits, as a target."""
        with recording(True):
            last_1D = self.line.end_1SD[0, -1:].detach().requires_grad_(True)
            logits_V = self.line.logits(last_1D)
            [own] = torch.autograd.grad(logits_V, [last_1D], by_logits_V.to(logits_V))
        with recording(False):
            whole = torch.zeros_like(self.line.end_1SD)
            whole[0, -1:] = own
        return GraphTarget(behind_1SD=whole)

    def _seeds(self, targets: Sequence[GraphTarget], layer: int, read: Tensor) -> Tensor:
        """Return the gradient of each target by what the transcoder of a layer reads."""
        with recording(False):
            found = torch.zeros((len(targets), *read.shape), dtype=read.dtype, device=read.device)
            for number, target in enumerate(targets):
                one, at = (None, 0) if target.number is None else self.place(target.number)
                if one is not None and one.layer == layer:
                    self._value(layer, found[number])[one.positions_A[at]] = one.encoder_row(at).to(read.dtype)
        return found

    def _add(self, found_BC: Tensor, layer: int, by_given: Tensor) -> None:
        """Add the effects of what is written to the MLP of a layer."""
        by_BSD = torch.stack([self._made(layer, one) for one in by_given]).float()
        for start, one in zip(self._starts, self.features, strict=False):
            written_AD = one.written(layer)
            if written_AD is not None and len(one):
                effects_BA = torch.einsum("bad,ad->ba", by_BSD[:, one.positions_A], written_AD)
                found_BC[:, start : start + len(one)] += effects_BA
        first = self.active + layer * self.length
        found_BC[:, first : first + self.length] = (by_BSD * self.errors[layer]).sum(-1)

    def _error(self, layer: int) -> Tensor:
        """Return what the MLP of a layer makes and the transcoders do not, float32 [S, D]."""
        given = self._made(layer, self.line.given(layer))
        bias = self._made(layer, biases(self.modules, layer, self.line.made[layer]))
        return given.float() - bias.float() - reconstructed(self.features, layer, given)

    def _made(self, layer: int, raw: Tensor) -> Tensor:
        return self.line.taps[layer].made.read(raw)

    def _value(self, layer: int, raw: Tensor | None) -> Tensor:
        """Return what the transcoder of a layer reads [S, D], a view."""
        read = self.line.taps[layer].read
        assert raw is not None and read is not None and isinstance(read.layout, PositionLayout)
        return read.layout.read(raw)


def _pulled(outputs: Sequence[Tensor], inputs: Sequence[Tensor], by: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients [B, ...] of inputs by those [B, ...] of outputs, all targets at once."""
    with recording(True):
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            list(outputs), list(inputs), list(by), allow_unused=True, is_grads_batched=True
        )
    return found


def _require_middle(own: Tensor, none: Tensor | None, half: Tensor | None, where: str) -> None:
    assert none is not None and half is not None
    allowed = (1e-3 if own.dtype.itemsize > 2 else 5e-2) * own.float().abs().max()
    if ((own.float() + none.float()) / 2 - half.float()).abs().max() > allowed:
        raise UsageError(NOT_AFFINE.format(where=where))
