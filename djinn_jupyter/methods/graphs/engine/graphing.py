"""An attribution graph in the making (Ameisen et al. 2025, "Circuit Tracing"): the line once as the model runs it, its
affine part, the effects on the outputs, and then on the features of most influence, some at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.interventions.metric import Metric
from djinn_jupyter.engine.requests.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.added_modules import AddedModule, write_site
from djinn_jupyter.engine.session.progress import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.methods.attribution.engine.slopes import metric_gradient
from djinn_jupyter.methods.attribution.engine.trial import Trials
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.graphs.engine.active_features import dictionary_of
from djinn_jupyter.methods.graphs.engine.frozen_line import FrozenLine, LayerTaps
from djinn_jupyter.methods.graphs.engine.graph_effects import GraphEffects, GraphTarget
from djinn_jupyter.methods.graphs.request import GraphMade, MakeGraph

TOGETHER: Final = 32  # targets of one way back
RANKED: Final = 128  # features chosen by one ranking
BENT: Final = "The model bends its logits after the head, as a soft-cap does: outputs are of those before that."
FOR_A_TARGET: Final = 3  # graphs of one layer that a target's gradients may take


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """An output of the graph: its derivatives [V] by the logits, and its share of the influence."""

    text: str
    weight: float
    by_logits_V: Tensor


class GraphMaking:
    """One attribution graph of one session. `metric` is its output, None for the most probable tokens."""

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
        yield from self._counted(line.record())
        effects = GraphEffects(line, self.modules)
        yield from room.take(self._rows(effects) * effects.sources * 4)
        bias_A, nothing_V = yield from self._affine(effects)
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
        """Return the outputs: the metric, or the logits of the most probable tokens less the mean of all."""
        with recording(False):
            if self.metric is not None:
                slopes_V = metric_gradient(self.metric, logits_V)
                return [Output(text=self.metric.condition.text, weight=1.0, by_logits_V=slopes_V)]
            probable, tokens = torch.softmax(logits_V.float(), -1).topk(min(self.asked.logits, len(logits_V)))
            enough = int((probable.cumsum(0) < self.asked.probability).sum()) + 1
            return [self._logit(token, one, logits_V) for token, one in self._pairs(tokens, probable, enough)]

    def _pairs(self, tokens: Tensor, probable: Tensor, count: int) -> list[tuple[int, float]]:
        return list(zip(tokens[:count].tolist(), probable[:count].tolist(), strict=True))

    def _logit(self, token: int, probability: float, logits_V: Tensor) -> Output:
        by_logits_V = torch.full_like(logits_V, -1.0 / len(logits_V), dtype=torch.float32)
        by_logits_V[token] += 1.0
        text = f"logit({self.runtime.tokenizer.text_of(token)!r})"
        return Output(text=text, weight=probability, by_logits_V=by_logits_V)

    def _ranked(
        self, effects: GraphEffects, outputs: Sequence[Output], rows: Sequence[Tensor], chosen: Sequence[int]
    ) -> list[int]:
        """Return the features of most influence on the outputs that were not chosen yet."""
        weights = torch.tensor([one.weight for one in outputs])
        influence_A = influences(torch.cat(list(rows)), weights, chosen)[: effects.active]
        influence_A[chosen] = -1.0
        count = min(RANKED, self.asked.features - len(chosen), effects.active - len(chosen))
        found: list[int] = influence_A.argsort(descending=True, stable=True)[:count].tolist()
        return found

    def _affine(self, effects: GraphEffects) -> Generator[None, None, tuple[Tensor, Tensor]]:
        going = effects.affine()
        while True:
            try:
                next(going)
            except StopIteration as done:
                found: tuple[Tensor, Tensor] = done.value
                return found
            self._count()
            yield

    def _effects(self, effects: GraphEffects, targets: Sequence[GraphTarget]) -> Generator[None, None, Tensor]:
        """Return the effects on some targets, on the host."""
        going = effects.rows(targets)
        while True:
            try:
                next(going)
            except StopIteration as done:
                found: Tensor = done.value
                return found.cpu()
            self._count()
            yield

    def _counted(self, going: Generator[None, None, None]) -> Generator[None, None, None]:
        for _ in going:
            self._count()
            yield

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
        """Return what each target has without any source, and what it has on the line, float64 on the host."""
        bias_A, nothing_V = none
        of_outputs = [one.by_logits_V.double() for one in outputs]
        bias = [float(one @ nothing_V.double()) for one in of_outputs]
        reached = [float(one @ effects.line.logits_V.double()) for one in of_outputs]
        before_A = torch.cat([one.before_A for one in effects.features])
        bias += [float(bias_A[number]) for number in numbers]
        reached += [float(before_A[number]) for number in numbers]
        return torch.tensor(bias, dtype=torch.float64), torch.tensor(reached, dtype=torch.float64)


def influences(rows_RC: Tensor, weights_O: Tensor, chosen: Sequence[int]) -> Tensor:
    """Return the influence of each source on the outputs, over all paths: each target passes its own on to its sources
    by their share of the sizes. Rows are those of the outputs, then those of the `chosen` features, by columns."""
    sizes_RC = rows_RC.abs()
    shares_RC = sizes_RC / sizes_RC.sum(1, keepdim=True).clamp_min(1e-30)
    passed_R = torch.cat([weights_O, torch.zeros(len(chosen))])
    found_C = torch.zeros(rows_RC.shape[1])
    while bool(passed_R.any()):
        reached_C = passed_R @ shares_RC
        found_C += reached_C
        passed_R = torch.cat([torch.zeros_like(weights_O), reached_C[list(chosen)]])
    return found_C
