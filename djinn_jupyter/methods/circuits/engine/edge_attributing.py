"""An attribution of edges under way: both lines forward, the way back, and the reply."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.interventions.metric import Metric
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.progress import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, counted, recording
from djinn_jupyter.methods.attribution.engine.slopes import metric_gradient
from djinn_jupyter.methods.attribution.engine.trial import Trials
from djinn_jupyter.methods.circuits.engine.edges import (
    EdgedLine,
    EdgeScores,
    LayerEnds,
    entry_between,
    names_of,
    require_sum,
    wide,
)
from djinn_jupyter.methods.circuits.request import EdgesAttributed
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.wire.sites import Site

GRAPHS: Final = 2  # of one layer: its own while it is gone through, and as much of gradients beside it


class EdgeAttributing:
    """One attribution of edges of one session. Each layer's graph is made again on the way back."""

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        lines: tuple[tuple[int, ...], tuple[int, ...]],
        metric: Metric,
        steps: int,
    ) -> None:
        self.runtime, self.session, self.metric, self.count = runtime, session, metric, steps
        self.corrupted, self.clean = lines
        self.done = 0

    def steps(self, workspace: Workspace, trials: Trials) -> Generator[Blocked | None, None, EdgesAttributed]:
        """Compute every edge's score. Raises SlabFull and OutOfDeviceMemory; UsageError where the model gives no
        gradients; UnknownSite where its edges are not told apart."""
        with (
            device_memory_for("the way back of this attribution", "Close sessions, or give shorter lines."),
            workspace.opened(self.session) as room,
        ):
            return (yield from self._steps(room, trials))

    def _steps(self, room: Reservation, trials: Trials) -> Generator[Blocked | None, None, EdgesAttributed]:
        forward = self.runtime.forward
        layers = [LayerEnds.of(forward, layer) for layer in range(forward.layers)]
        writers, readers = names_of(layers)
        size = yield from trials.size(self.runtime, LinesAlone(self.runtime, self.session))
        kept = (3 * len(writers) + forward.layers) * len(self.corrupted) * forward.anatomy.hidden_size * 4
        yield from room.take(kept + GRAPHS * size.at(len(self.corrupted)))
        source = EdgedLine(forward, LayerArguments.of(forward, self.clean), layers)
        line = EdgedLine(forward, LayerArguments.of(forward, self.corrupted), layers)
        clean, clean_end = yield from self._written(source, layers)
        own, own_end = yield from self._written(line, layers)
        values = [self.metric.of(one.logits(end)) for one, end in ((line, own_end), (source, clean_end))]
        with recording(False):
            require_sum(clean - own, clean_end - own_end)
            scores = EdgeScores(layers=layers, weight=1 / self.count, writers_WSD=clean - own)
        for step in range(self.count):
            entry = entry_between(line.arguments.entry_1SD, source.arguments.entry_1SD, step, self.count)
            end = yield from self._counted(line.onward(entry_1SD=entry, graphs=True, keep=False))
            yield from self._counted(line.back([metric_gradient(self.metric, line.logits(end))], scores))
        return EdgesAttributed(
            metric=self.metric.condition.text,
            writers=writers,
            readers=readers,
            scores=to_array(scores.matrix(readers)),
            corrupted=values[0],
            clean=values[1],
            steps=self.count,
        )

    def _written(self, line: EdgedLine, layers: list[LayerEnds]) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Run a line. Return what each writer adds, float32 [W, S, D], and the last residual."""
        seen: dict[Site, Tensor] = {}
        wanted = {tap.site for one in layers for tap in (one.z, one.mlp_out)}

        def meet(tap: Tap, raw: Tensor) -> None:
            if tap.site in wanted:
                seen[tap.site] = raw.clone()

        end = yield from self._counted(line.onward(meet))
        found = [wide(line.arguments.entry_1SD)]
        for one in layers:
            with recording(False), self.runtime.forward.calling():
                found.append(one.added(seen.pop(one.z.site), seen.pop(one.mlp_out.site)))
            yield
        with recording(False):
            return torch.cat(found), end

    def _counted(self, going: Generator[None, None, Tensor | None]) -> Generator[None, None, Tensor]:
        return counted(going, self._count, self.runtime.giving_way)

    def _count(self) -> None:
        self.done += 1
        layers = self.runtime.forward.layers
        total = max(self.done, 2 * layers + self.count * (2 * layers + 1))
        self.runtime.counters.count_layers(1)
        publish_progress(self.runtime, self.session, "attributing", self.done, total, "layers")
