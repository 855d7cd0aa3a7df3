"""Edge attribution (EAP; Syed et al. 2023, arXiv 2310.10348; with steps EAP-IG, Hanna et al. 2024, arXiv 2403.17806).

An edge goes from a writer (the embedding, a head, an MLP) to a reader (the queries, keys or values of a head, an MLP,
the logits). Its score is the change of the writer's addition to the residual times the metric's gradient with respect
to this reader's input alone: a gradient that goes back from the reader through the norm before it, not past it.

Shapes: W writers, R readers, S positions, D features, H heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.conditions import Metric
from djinn_jupyter.engine.passes.forward import Forward, device_memory_for
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.run import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.attribution.engine.attributing import Trials
from djinn_jupyter.methods.attribution.engine.estimates import metric_gradient
from djinn_jupyter.methods.attribution.engine.line import (
    Flowing,
    GradedLayer,
    GradedLine,
    Gradients,
    GradientStream,
    LayerArguments,
    counted,
    recording,
)
from djinn_jupyter.methods.circuits.request import EdgesAttributed
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.wire.sites import Site

READERS: Final = ("q", "k", "v", "mlp_in")
UNEXPLAINED: Final = 1e-3  # of the residual's change, in float32; in 16 bits 0.05
UNEXPLAINED_IN_16_BITS: Final = 0.05


def most_edges(anatomy: Anatomy) -> int:
    """Return an upper bound of the number of edges: from every writer to every reader."""
    ends = Counter[str]()
    for (point, _), tap in anatomy.taps.items():
        if isinstance(tap, Tap):
            ends[point] += tap.heads or 1
    return (1 + ends["z"] + ends["mlp_out"]) * (1 + sum(ends[point] for point in READERS))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerEnds:
    """The writers and readers of one layer. `mid` is the MLP's input, None where it reads in parallel with
    attention."""

    z: Tap
    mlp_out: Tap
    readers: Mapping[str, Tap]
    mid: Tap | None

    @classmethod
    def of(cls, forward: Forward, layer: int) -> LayerEnds:
        """Find them. Raises UnknownSite where the model's layers have others."""
        taps = forward.anatomy.taps
        for point in ("attn_out_post", "mlp_out_post"):
            if isinstance(taps[point, layer], Tap):
                raise UnknownSite(f"Edges of layer {layer} are not told apart: a norm stands behind its blocks.")
        mid = taps["resid_mid", layer]
        return cls(
            z=_found(forward, "z", layer),
            mlp_out=_found(forward, "mlp_out", layer),
            readers={point: _found(forward, point, layer) for point in READERS},
            mid=mid if isinstance(mid, Tap) else None,
        )

    @property
    def heads(self) -> int:
        return self.z.heads or 0

    def taps(self) -> Iterator[Tap]:
        yield from (self.z, self.mlp_out, *self.readers.values())
        if self.mid is not None:
            yield self.mid

    def added(self, z_raw: Tensor, mlp_raw: Tensor) -> Tensor:
        """Return the additions of each head and the MLP to the residual, float32 or wider [H + 1, S, D], without the
        bias."""
        return torch.cat([self.heads_added(z_raw), wide(self.mlp_out.read(mlp_raw))[None]])

    def heads_added(self, z_raw: Tensor) -> Tensor:
        """Return the same for each head [H, S, D]."""
        module: Any = self.z.module
        value, nothing = self.z.read(z_raw), torch.zeros_like(z_raw)
        found = [self._mapped(module, nothing)]
        for head in range(self.heads):
            one = torch.zeros_like(value)
            one[:, head] = value[:, head]
            found.append(self._mapped(module, self.z.write(nothing, one)))
        return wide(torch.stack([one - found[0] for one in found[1:]]))

    def _mapped(self, module: Any, given: Tensor) -> Tensor:
        made: Tensor = module.forward(given)  # without the hooks of taps, and with the adapter of the session
        return made.reshape(-1, made.shape[-1])


@dataclass(slots=True, kw_only=True, eq=False)
class EdgeScores:
    """Takes the gradients of readers. `writers_WSD` are the changes of the writers' additions, in order."""

    layers: Sequence[LayerEnds]
    weight: float
    writers_WSD: Tensor
    found: dict[str, Tensor] = field(default_factory=dict)

    def read(self, reader: str, before: int, gradient_1SD: Tensor) -> None:
        """Add the scores of the edges from the first `before` writers to a reader."""
        gradient_SD = gradient_1SD[0].to(self.writers_WSD.dtype)
        scores_W = torch.einsum("wsd,sd->w", self.writers_WSD[:before], gradient_SD).double()
        self.found[reader] = self.weight * scores_W + self.found.get(reader, 0.0)

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None:
        """Ignore the gradients at taps: the readers' own are used."""

    def before(self, layer: int) -> int:
        """Return the number of writers before a layer."""
        return writers_before(self.layers, layer)

    def matrix(self, readers: Sequence[str]) -> Tensor:
        """Return the scores [W, R], on the host; NaN where the writer is not before the reader."""
        found = torch.full((len(self.writers_WSD), len(readers)), torch.nan, dtype=torch.float64)
        for number, reader in enumerate(readers):
            if reader in self.found:
                scores_W = self.found[reader].cpu()
                found[: len(scores_W), number] = scores_W
        return found


class EdgedLine(GradedLine):
    """A sequence whose readers' gradients are taken on the way back: one for each head, through the norm before it."""

    def __init__(self, forward: Forward, arguments: Any, layers: Sequence[LayerEnds]) -> None:
        super().__init__(forward, arguments, [tap for one in layers for tap in one.taps()])
        self._ends = layers

    def _through(self, ran: GradedLayer, flowing: Flowing, gradients: Gradients) -> Flowing:
        assert ran.after_1SD is not None and ran.edges is not None and isinstance(gradients, EdgeScores)
        layer, behind = len(self._runs), flowing[GradientStream(0)]
        if layer == self.forward.layers - 1:
            gradients.read("logits", len(gradients.writers_WSD), behind)
        with recording(True):
            entry = get_gradient_edge(ran.entry_1SD)
        edges = {tap.site: edge for tap, edge in ran.edges}
        own, *within = _grads([ran.after_1SD], [entry, *edges.values()], [behind])
        at = dict(zip(edges, within, strict=True))
        for name, head, tap in self._readers(layer):
            gradient = at.get(tap.site)
            if gradient is not None:
                target, before = self._read_at(layer, name, entry, edges, gradients)
                part = gradient if head is None else _of_head(tap, gradient, head)
                [read] = _grads([edges[tap.site]], [target], [part])
                if read is not None:
                    gradients.read(spelled(name, layer, head), before, read.reshape(behind.shape))
        return {GradientStream(0): torch.zeros_like(ran.entry_1SD) if own is None else own}

    def _readers(self, layer: int) -> Iterator[tuple[str, int | None, Tap]]:
        for point, tap in self._ends[layer].readers.items():
            heads: Sequence[int | None] = [None] if point == "mlp_in" else range(tap.heads or 0)
            yield from ((point, head, tap) for head in heads)

    def _read_at(
        self, layer: int, point: str, entry: GradientEdge, edges: Mapping[Any, GradientEdge], scores: EdgeScores
    ) -> tuple[GradientEdge, int]:
        """Return where a reader reads the residual, and the number of writers before it."""
        ends, before = self._ends[layer], scores.before(layer)
        if point == "mlp_in" and ends.mid is not None:
            return edges[ends.mid.site], before + ends.heads
        return entry, before


def wide(value: Tensor) -> Tensor:
    """Return a value in float32 at least."""
    return value.float() if value.dtype.itemsize < 4 else value


def writers_before(layers: Sequence[LayerEnds], layer: int) -> int:
    """Return the number of writers before a layer."""
    return 1 + sum(one.heads + 1 for one in layers[:layer])


def names_of(layers: Sequence[LayerEnds]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of all writers and of all readers, in order."""
    writers, readers = ["embed"], []
    for layer, ends in enumerate(layers):
        writers += [*(f"z.{layer}[{head}]" for head in range(ends.heads)), f"mlp_out.{layer}"]
        for point, tap in ends.readers.items():
            units: Sequence[int | None] = [None] if point == "mlp_in" else range(tap.heads or 0)
            readers += [spelled(point, layer, unit) for unit in units]
    return tuple(writers), (*readers, "logits")


def require_sum(writers_WSD: Tensor, change_1SD: Tensor) -> None:
    """Raise UnknownSite where the writers' changes do not sum to the change of the last residual."""
    change, allowed = wide(change_1SD[0]), UNEXPLAINED if change_1SD.dtype.itemsize > 2 else UNEXPLAINED_IN_16_BITS
    size = float((writers_WSD.sum(0) - change).norm() / change.norm().clamp_min(1e-30))
    if size > allowed:
        raise UnknownSite(
            "What the heads and MLPs of this model add does not sum to its residual, so edges explain nothing "
            f"({size:.2%} of the change is something else)."
        )


def _found(forward: Forward, point: str, layer: int) -> Tap:
    tap = forward.anatomy.taps[point, layer]
    if isinstance(tap, str) or (point not in ("mlp_in", "mlp_out") and tap.heads is None):
        why = tap if isinstance(tap, str) else f"{point} is not divided into heads"
        raise UnknownSite(f"Edges of layer {layer} are not told apart: {why}.")
    return tap


def spelled(point: str, layer: int, head: int | None) -> str:
    return f"{point}.{layer}" if head is None else f"{point}.{layer}[{head}]"


def _of_head(tap: Tap, gradient: Tensor, head: int) -> Tensor:
    """Return a gradient's part for one head, zero elsewhere."""
    value = tap.read(gradient.contiguous())
    part = torch.zeros_like(value)
    part[:, head] = value[:, head]
    return tap.write(torch.zeros_like(gradient), part)


def _grads(outputs: Sequence[Any], inputs: Sequence[GradientEdge], by: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    with recording(True):
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            list(outputs), list(inputs), list(by), retain_graph=True, allow_unused=True
        )
    return found


def entry_between(one: Tensor, other: Tensor, step: int, steps: int) -> Tensor:
    """Return the entry of a step's pass: the original one for a single step, else a midpoint of equal parts of the path
    to the other's."""
    with recording(False):
        return one if steps == 1 else torch.lerp(one, other, (step + 0.5) / steps)


# An attribution of edges in progress: both sequences forward, the way back, and the reply.

GRAPHS: Final = 2  # of one layer: its own while it is processed, and as much for gradients


class EdgeAttributing:
    """One attribution of edges in one session. Each layer's graph is recomputed on the way back."""

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
        gradients; UnknownSite where its edges cannot be distinguished."""
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
        """Run a sequence. Return each writer's addition, float32 [W, S, D], and the last residual."""
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
