"""An attribution graph in the making: the active features of transcoders, their writes to the MLPs, and the errors.

Shapes: S positions, D features of the residual, F of a transcoder, A active features of one layer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.passes.conditions import Metric
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked, counted
from djinn_jupyter.engine.session.run import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.attribution.engine.attributing import Trials
from djinn_jupyter.methods.attribution.engine.estimates import metric_gradient
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.graphs.engine.frozen_line import FrozenLine, LayerTaps
from djinn_jupyter.methods.graphs.request import GraphMade, MakeGraph
from djinn_jupyter.modules.engine.added import AddedModule, write_site
from djinn_jupyter.modules.engine.arithmetic import Dictionary
from djinn_jupyter.wire.modules import TRANSCODERS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActiveFeatures:
    """The active features of one layer, in order of positions. `before_A` are their values before the activation."""

    layer: int
    site: str
    dictionary: Dictionary
    positions_A: Tensor
    units_A: Tensor
    values_A: Tensor
    before_A: Tensor

    @classmethod
    def of(cls, module: AddedModule, x_SD: Tensor) -> ActiveFeatures:
        """Return the features of a module that are active at its input x."""
        dictionary = dictionary_of(module)
        x_SD = x_SD.to(dictionary.encoder_FD.dtype)
        features_SF = dictionary.read(x_SD)
        positions_A, units_A = features_SF.nonzero().unbind(1)
        before_SF = linear(x_SD, dictionary.encoder_FD, dictionary.bias_F)
        return cls(
            layer=module.layer,
            site=str(module.site),
            dictionary=dictionary,
            positions_A=positions_A,
            units_A=units_A,
            values_A=features_SF[positions_A, units_A].float(),
            before_A=before_SF[positions_A, units_A].float(),
        )

    def __len__(self) -> int:
        return len(self.units_A)

    def written(self, layer: int) -> Tensor | None:
        """Return what each writes to the MLP of a layer, float32 [A, D]; None for a layer that it does not write to."""
        decoder_FO = self._decoder(layer)
        return None if decoder_FO is None else decoder_FO[self.units_A].float() * self.values_A[:, None]

    def _decoder(self, layer: int) -> Tensor | None:
        if layer == self.layer:
            return self.dictionary.decoder_FO
        later = self.dictionary.later_LFO
        return None if later is None or layer < self.layer else later[layer - self.layer - 1]

    def encoder_row(self, number: int) -> Tensor:
        """Return the direction [D] by which a feature reads, float32."""
        return self.dictionary.encoder_FD[self.units_A[number]].float()

    def bias_before(self, x_SD: Tensor) -> Tensor:
        """Return the value of each before its activation for another input x of its module, float64 [A]."""
        rows_AD = self.dictionary.encoder_FD[self.units_A].double()
        bias_A = self.dictionary.bias_F[self.units_A].double()
        return (rows_AD * x_SD[self.positions_A].double()).sum(-1) + bias_A


def dictionary_of(module: AddedModule) -> Dictionary:
    """Return a transcoder's arithmetic. Raises UsageError for a module whose features are not a sum over its input."""
    form, found = module.identity.form, module.held.present
    if form.kind not in TRANSCODERS or not isinstance(found, Dictionary):
        kind = form.kind.replace("_", " ")
        raise UsageError(f"{module.site} is of kind {kind}; an attribution graph goes through transcoders of MLPs.")
    strange = {
        "gated": form.activation == "gated",
        "by_decoder_norm": form.by_decoder_norm,
        "center_writing_weights": form.centered,
        f"normalization {form.normalization}": form.normalization != "none",
    }
    why = next((name for name, there in strange.items() if there), None)
    if why is not None:
        raise UsageError(f"{module.site} has {why}, with which a feature is no sum of what it reads: it has no graph.")
    return found


def biases(modules: Sequence[AddedModule], layer: int, like_SD: Tensor) -> Tensor:
    """Return the transcoders' addition to the MLP of a layer without any feature."""
    own = [dictionary_of(one).decoder_bias_O for one in modules if one.layer == layer]
    return torch.zeros_like(like_SD) + own[0].to(like_SD.dtype) if own else torch.zeros_like(like_SD)


def reconstructed(features: Sequence[ActiveFeatures], layer: int, like_SD: Tensor) -> Tensor:
    """Return what all active features write to the MLP of a layer, float32 [S, D]."""
    found_SD = torch.zeros_like(like_SD, dtype=torch.float32)
    for one in features:
        written_AD = one.written(layer)
        if written_AD is not None:
            found_SD.index_add_(0, one.positions_A, written_AD)
    return found_SD


# The direct effects of sources (active features, errors, embeddings) on targets of an attribution graph: gradients that
# go back from each target through the affine part of a sequence, times each source's write. Shapes: B targets at once,
# S positions, D features, A active features of all layers, C sources.

NOT_AFFINE = "This model has no attribution graph: with attention patterns and norms held, {where} is not affine."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTarget:
    """An output, whose gradient after the last layer is `behind_1SD`, or the active feature of this `number`."""

    behind_1SD: Tensor | None = None
    number: int | None = None


class GraphEffects:
    """The sources of a sequence, and their effects. `features` are by layer; sources are numbered: features, then
    errors by layer and position, then embeddings by position."""

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
        """Return the features of an active feature's layer, and its number among them."""
        at = next(at for at, start in enumerate(self._starts[1:]) if number < start)
        return self.features[at], number - self._starts[at]

    def affine(self) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Return the value of each active feature before its activation without any source, float64 [A], and the logits
        [V]. Raises UsageError where the midpoint between that and the sequence's own values is not affine."""
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
        """Return the output with these derivatives [V] with respect to the logits, as a target."""
        with recording(True):
            last_1D = self.line.end_1SD[0, -1:].detach().requires_grad_(True)
            logits_V = self.line.logits(last_1D)
            [own] = torch.autograd.grad(logits_V, [last_1D], by_logits_V.to(logits_V))
        with recording(False):
            whole = torch.zeros_like(self.line.end_1SD)
            whole[0, -1:] = own
        return GraphTarget(behind_1SD=whole)

    def _seeds(self, targets: Sequence[GraphTarget], layer: int, read: Tensor) -> Tensor:
        """Return the gradient of each target with respect to a layer's transcoder's input."""
        with recording(False):
            found = torch.zeros((len(targets), *read.shape), dtype=read.dtype, device=read.device)
            for number, target in enumerate(targets):
                one, at = (None, 0) if target.number is None else self.place(target.number)
                if one is not None and one.layer == layer:
                    self._value(layer, found[number])[one.positions_A[at]] = one.encoder_row(at).to(read.dtype)
        return found

    def _add(self, found_BC: Tensor, layer: int, by_given: Tensor) -> None:
        """Add the effects of the writes to the MLP of a layer."""
        by_BSD = torch.stack([self._made(layer, one) for one in by_given]).float()
        for start, one in zip(self._starts, self.features, strict=False):
            written_AD = one.written(layer)
            if written_AD is not None and len(one):
                effects_BA = torch.einsum("bad,ad->ba", by_BSD[:, one.positions_A], written_AD)
                found_BC[:, start : start + len(one)] += effects_BA
        first = self.active + layer * self.length
        found_BC[:, first : first + self.length] = (by_BSD * self.errors[layer]).sum(-1)

    def _error(self, layer: int) -> Tensor:
        """Return the MLP's output of a layer minus the transcoders' reconstruction, float32 [S, D]."""
        given = self._made(layer, self.line.given(layer))
        bias = self._made(layer, biases(self.modules, layer, self.line.made[layer]))
        return given.float() - bias.float() - reconstructed(self.features, layer, given)

    def _made(self, layer: int, raw: Tensor) -> Tensor:
        return self.line.taps[layer].made.read(raw)

    def _value(self, layer: int, raw: Tensor | None) -> Tensor:
        """Return the input of a layer's transcoder [S, D], a view."""
        read = self.line.taps[layer].read
        assert raw is not None and read is not None and isinstance(read.layout, PositionLayout)
        return read.layout.read(raw)


def _pulled(outputs: Sequence[Tensor], inputs: Sequence[Tensor], by: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients [B, ...] of inputs from those [B, ...] of outputs, all targets at once."""
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


# An attribution graph in the making (Ameisen et al. 2025, "Circuit Tracing"): the sequence once through the model, its
# affine part, the effects on the outputs, and then on the features with the most influence, some at a time.

TOGETHER: Final = 32  # targets of one way back
RANKED: Final = 128  # features chosen by one ranking
BENT: Final = "The model bends its logits after the head, as a soft-cap does: outputs are of those before that."
FOR_A_TARGET: Final = 3  # graphs of one layer that a target's gradients may take


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """An output of the graph: its derivatives [V] with respect to the logits, and its share of the influence."""

    text: str
    weight: float
    by_logits_V: Tensor


class GraphMaking:
    """One attribution graph in one session. `metric` is its output, None for the most probable tokens."""

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        tokens: tuple[int, ...],
        modules: Sequence[AddedModule],
        metric: Metric | None,
        asked: MakeGraph,
    ) -> None:
        self.runtime, self.session, self.tokens = runtime, session, tokens
        self.modules, self.metric, self.asked = modules, metric, asked
        self.done = 0
        self.total: int | None = None

    def steps(self, workspace: Workspace, trials: Trials) -> Generator[Blocked | None, None, GraphMade]:
        """Make the graph. Raises SlabFull and OutOfDeviceMemory; UsageError where the model gives no gradients or is
        not affine; UnknownSite where its layers have no such points."""
        with (
            device_memory_for("the way back of this graph", "Close sessions, or give a shorter line."),
            workspace.opened(self.session) as room,
        ):
            return (yield from self._steps(room, trials))

    def _steps(self, room: Reservation, trials: Trials) -> Generator[Blocked | None, None, GraphMade]:
        forward = self.runtime.forward
        size = yield from trials.size(self.runtime, LinesAlone(self.runtime, self.session))
        kept = 8 * forward.layers * len(self.tokens) * forward.anatomy.hidden_size * 4
        yield from room.take(kept + FOR_A_TARGET * TOGETHER * size.at(len(self.tokens)))
        line = FrozenLine(forward, LayerArguments.of(forward, self.tokens), self._taps())
        yield from counted(line.record(), self._count)
        effects = GraphEffects(line, self.modules)
        yield from room.take(self._rows(effects) * effects.sources * 4)
        bias_A, nothing_V = yield from counted(effects.affine(), self._count)
        outputs = self._outputs(line.logits_V)
        groups = 1 - (-min(self.asked.features, effects.active) // TOGETHER)
        self.total = self.done + groups * forward.layers
        rows = [(yield from self._effects(effects, [effects.behind(one.by_logits_V) for one in outputs]))]
        chosen: list[int] = []
        while len(chosen) < min(self.asked.features, effects.active):
            ranked = self._ranked(effects, outputs, rows, chosen)
            for start in range(0, len(ranked), TOGETHER):
                if chosen and self.session.progress.can_end():
                    return self._reply(effects, outputs, torch.cat(rows), chosen, (bias_A, nothing_V))
                part = ranked[start : start + TOGETHER]
                rows.append((yield from self._effects(effects, [GraphTarget(number=number) for number in part])))
                chosen += part
        return self._reply(effects, outputs, torch.cat(rows), chosen, (bias_A, nothing_V))

    def _rows(self, effects: GraphEffects) -> int:
        return min(self.asked.features, effects.active) + self.asked.logits + TOGETHER

    def _taps(self) -> list[LayerTaps]:
        forward, by_layer = self.runtime.forward, {one.layer: one for one in self.modules}
        found = []
        for layer in range(forward.layers):
            module = by_layer.get(layer)
            read = None if module is None else self.runtime.resolve(module.at)
            skip = None if module is None else dictionary_of(module).skip_OD
            made = write_site((module or self.modules[0]).identity, forward.anatomy, layer)
            found.append(LayerTaps.of(forward, made, read, skip))
        return found

    def _outputs(self, logits_V: Tensor) -> list[Output]:
        """Return the outputs: the metric, or the logits of the most probable tokens minus the mean of all."""
        with recording(False):
            if self.metric is not None:
                slopes_V = metric_gradient(self.metric, logits_V)
                return [Output(text=self.metric.condition.text, weight=1.0, by_logits_V=slopes_V)]
            probable, tokens = torch.softmax(logits_V.float(), -1).topk(min(self.asked.logits, len(logits_V)))
            require_finite(probable)
            enough = int((probable.cumsum(0) < self.asked.probability).sum()) + 1
            pairs = self._pairs(tokens, probable, enough)
            texts = [self.runtime.tokenizer.text_of(token) for token, _ in pairs]
            said = [token if texts.count(text) > 1 else text for (token, _), text in zip(pairs, texts, strict=True)]
            return [self._logit(*pair, one, logits_V) for pair, one in zip(pairs, said, strict=True)]

    def _pairs(self, tokens: Tensor, probable: Tensor, count: int) -> list[tuple[int, float]]:
        return list(zip(tokens[:count].tolist(), probable[:count].tolist(), strict=True))

    def _logit(self, token: int, probability: float, said: str | int, logits_V: Tensor) -> Output:
        """Return the logit of a token as an output. It is `said` by its number where another has the same text."""
        by_logits_V = torch.full_like(logits_V, -1.0 / len(logits_V), dtype=torch.float32)
        by_logits_V[token] += 1.0
        return Output(text=f"logit({said!r})", weight=probability, by_logits_V=by_logits_V)

    def _ranked(
        self, effects: GraphEffects, outputs: Sequence[Output], rows: Sequence[Tensor], chosen: Sequence[int]
    ) -> list[int]:
        """Return the features with the most influence on the outputs that were not chosen yet."""
        weights = torch.tensor([one.weight for one in outputs])
        influence_A = influences(torch.cat(list(rows)), weights, chosen)[: effects.active]
        influence_A[chosen] = -1.0
        count = min(RANKED, self.asked.features - len(chosen), effects.active - len(chosen))
        found: list[int] = influence_A.argsort(descending=True, stable=True)[:count].tolist()
        return found

    def _effects(self, effects: GraphEffects, targets: Sequence[GraphTarget]) -> Generator[None, None, Tensor]:
        """Return the effects on some targets, on the host."""
        found = yield from counted(effects.rows(targets), self._count)
        require_finite(found)
        return found.cpu()

    def _count(self) -> None:
        self.done += 1
        self.runtime.counters.count_layers(1)
        publish_progress(self.runtime, self.session, "attributing", self.done, self.total, "layers")

    # --- the reply -------------------------------------------------------------------------------------------------

    def _reply(
        self,
        effects: GraphEffects,
        outputs: Sequence[Output],
        rows_RC: Tensor,
        chosen: Sequence[int],
        none: tuple[Tensor, Tensor],
    ) -> GraphMade:
        count, first = len(outputs), effects.active
        order = sorted(range(len(chosen)), key=lambda at: chosen[at])
        numbers = [chosen[at] for at in order]
        rows_RC = rows_RC[[*range(count), *(count + at for at in order)]]
        columns = [*numbers, *range(first, effects.sources)]
        places = [effects.place(number) for number in numbers]
        bias_R, reached_R = self._sides(effects, outputs, numbers, none)
        return GraphMade(
            outputs=tuple(one.text for one in outputs),
            weights=tuple(one.weight for one in outputs),
            sites=tuple(f"{one.site}[{int(one.units_A[at])}]" for one, at in places),
            positions=tuple(int(one.positions_A[at]) for one, at in places),
            values=tuple(float(one.values_A[at]) for one, at in places),
            edges=to_array(rows_RC[:, columns].contiguous()),
            reached=to_array(reached_R),
            bias=to_array(bias_R),
            summed=to_array(bias_R + rows_RC.double().sum(1)),
            active=effects.active,
            layers=tuple(one.layer for one in self.modules),
            all_layers=self.runtime.forward.layers,
            texts=tuple(self.runtime.tokenizer.text_of(token) for token in self.tokens),
            notes=(BENT,) if effects.line.bends else (),
        )

    def _sides(
        self, effects: GraphEffects, outputs: Sequence[Output], numbers: Sequence[int], none: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return each target's value without any source, and its value on the sequence, float64 on the host."""
        bias_A, nothing_V = none
        of_outputs = [one.by_logits_V.double() for one in outputs]
        bias = [float(one @ nothing_V.double()) for one in of_outputs]
        reached = [float(one @ effects.line.logits_V.double()) for one in of_outputs]
        before_A = torch.cat([one.before_A for one in effects.features])
        bias += [float(bias_A[number]) for number in numbers]
        reached += [float(before_A[number]) for number in numbers]
        return torch.tensor(bias, dtype=torch.float64), torch.tensor(reached, dtype=torch.float64)


def require_finite(values: Tensor) -> None:
    """Raise UnknownSite where a number is not finite: such influence would be passed on without end."""
    if not bool(values.isfinite().all()):
        raise UnknownSite("There is no attribution graph of this line: numbers in its pass or its effects overflow.")


def influences(rows_RC: Tensor, weights_O: Tensor, chosen: Sequence[int]) -> Tensor:
    """Return the influence of each source on the outputs, over all paths: each target passes its own on to its sources
    by their share of the magnitudes. Rows are those of the outputs, then those of the `chosen` features, by columns."""
    sizes_RC = rows_RC.abs()
    shares_RC = sizes_RC / sizes_RC.sum(1, keepdim=True).clamp_min(1e-30)
    passed_R = torch.cat([weights_O, torch.zeros(len(chosen))])
    found_C = torch.zeros(rows_RC.shape[1])
    while bool(passed_R.any()):
        reached_C = passed_R @ shares_RC
        found_C += reached_C
        passed_R = torch.cat([torch.zeros_like(weights_O), reached_C[list(chosen)]])
    return found_C
