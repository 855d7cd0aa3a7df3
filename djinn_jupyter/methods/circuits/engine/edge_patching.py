"""Edges patched, a pass each: single ones, and whole circuits with all else from the other line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.interventions.metric import Metric
from djinn_jupyter.engine.requests.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.progress import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.engine.wavefront.rounding import equal_but_for_rounding
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.line import recording
from djinn_jupyter.methods.attribution.engine.trial import why_no_line
from djinn_jupyter.methods.circuits.engine.edges import LayerEnds, names_of, require_sum, writers_before
from djinn_jupyter.methods.circuits.engine.line_record import LineRecord
from djinn_jupyter.methods.circuits.engine.patched_line import Patched, PatchedLine
from djinn_jupyter.methods.circuits.engine.recordings import Recordings
from djinn_jupyter.methods.circuits.request import MOST_EDGES, CircuitsRun, Edge, EdgesAttributed
from djinn_jupyter.methods.common.engine.lines import LinesAlone

AT_ONCE: Final = 4096  # edges that are checked before others have their turn
ADVICE: Final = "Close sessions, or give shorter lines."


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeNames:
    """The writers and readers of a model; the first `before[reader]` writers are before a reader."""

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    before: tuple[int, ...]

    @classmethod
    def of(cls, layers: Sequence[LayerEnds]) -> EdgeNames:
        writers, readers = names_of(layers)
        return cls(writers=writers, readers=readers, before=tuple(_before(layers, len(writers))))

    def all(self) -> Iterator[Edge]:
        """Yield every edge."""
        for reader, before in enumerate(self.before):
            yield from ((writer, reader) for writer in range(before))

    def checked(self, edges: Sequence[Edge]) -> Generator[None, None, Sequence[Edge]]:
        """Return the edges, each once, some thousand at a time. Raises UsageError for one that there is not."""
        if len(edges) > sum(self.before):
            raise UsageError(f"This model has {sum(self.before):,} edges, not {len(edges):,}: name each once.")
        kept = dict[Edge, None]()
        for begin in range(0, len(edges), AT_ONCE):
            part = edges[begin : begin + AT_ONCE]
            self._require(part)
            kept.update(dict.fromkeys(part))
            yield None
        return tuple(kept)

    def _require(self, edges: Iterable[Edge]) -> None:
        """Raise UsageError for an edge that there is not."""
        for writer, reader in edges:
            if reader >= len(self.readers) or writer >= self.before[reader]:
                raise UsageError(
                    f"There is no edge from writer {writer} to reader {reader}: this model has {len(self.writers)} "
                    f"writers and {len(self.readers)} readers, and a writer comes before its reader."
                )

    def patched(self, edges: Iterable[Edge]) -> Patched:
        """Return edges by their readers' names."""
        found: dict[str, set[int]] = defaultdict(set)
        for writer, reader in edges:
            found[self.readers[reader]].add(writer)
        return {reader: frozenset(writers) for reader, writers in found.items()}

    def all_but(self, edges: Sequence[Edge]) -> Patched:
        """Return all edges but these, by their readers' names."""
        kept = self.patched(edges)
        return {
            reader: frozenset(range(before)) - kept.get(reader, frozenset())
            for reader, before in zip(self.readers, self.before, strict=True)
        }


class EdgePatching:
    """Passes of one session over two lines, which are recorded first. `chosen` are the edges that were asked for, none
    for all; of `effects` that were ended early those that were patched."""

    def __init__(
        self,
        runtime: Runtime,
        session: Session,
        lines: tuple[tuple[int, ...], tuple[int, ...]],
        metric: Metric,
    ) -> None:
        self.runtime, self.session, self.metric = runtime, session, metric
        self.corrupted, self.clean = lines
        why = why_no_line(runtime.forward)
        if why is not None:
            raise UsageError(f"The edges of this model are not patched: {why}.")
        self.layers = [LayerEnds.of(runtime.forward, layer) for layer in range(runtime.forward.layers)]
        self.names = EdgeNames.of(self.layers)
        self.chosen: tuple[Edge, ...] = ()

    def effects(self, workspace: Workspace, chosen: Sequence[Edge]) -> Generator[Blocked | None, None, EdgesAttributed]:
        """Compute by how much each edge changes the metric of the corrupted line. Raises SlabFull; UsageError;
        UnknownSite where the model's edges are not told apart."""
        self.chosen = tuple(chosen)
        edges = list((yield from self.names.checked(chosen))) or list(self.names.all())
        scores = torch.full((len(self.names.writers), len(self.names.readers)), torch.nan, dtype=torch.float64)
        with self._memory(), workspace.opened(self.session) as room:
            own, clean = yield from self._recorded(room)
            values = self._values(own, clean)
            line = PatchedLine(self.runtime.forward, self.layers, own, clean)
            sets = (self.names.patched([edge]) for edge in edges)
            found = yield from self._passes(line, sets, len(edges))
            if len(found) < len(edges):
                self.chosen = tuple(edges[: len(found)])
            for edge, value in zip(edges, found, strict=False):
                scores[edge] = value - values[0]
        return EdgesAttributed(
            metric=self.metric.condition.text,
            writers=self.names.writers,
            readers=self.names.readers,
            scores=to_array(scores),
            corrupted=values[0],
            clean=values[1],
            steps=1,
            method="exact",
        )

    def circuits(
        self, recordings: Recordings, circuits: Sequence[Sequence[Edge]]
    ) -> Generator[Blocked | None, None, CircuitsRun]:
        """Compute the metric of each circuit. The lines are recorded once in a session. Raises as `effects`."""
        _require_few(sum(map(len, circuits)))
        kept = []
        for circuit in circuits:
            kept.append((yield from self.names.checked(circuit)))
        with self._memory():
            recording = yield from recordings.of(self.session, self._computed_from, self._recorded)
            with recording.in_use() as (corrupted, clean):
                values = self._values(corrupted, clean)
                line = PatchedLine(self.runtime.forward, self.layers, clean, corrupted)
                sets = (self.names.all_but(circuit) for circuit in kept)
                found = yield from self._passes(line, sets, len(kept))
        return CircuitsRun(
            metric=self.metric.condition.text,
            writers=self.names.writers,
            readers=self.names.readers,
            values=tuple(found),
            corrupted=values[0],
            clean=values[1],
        )

    @property
    def _computed_from(self) -> Hashable:
        """All that the recorded lines follow from."""
        adapter = self.session.adapter
        return self.corrupted, self.clean, self.session.attention, None if adapter is None else adapter.identity

    def _memory(self) -> AbstractContextManager[None]:
        return device_memory_for("the passes with patched edges", ADVICE)

    def _recorded(self, room: Reservation) -> Generator[Blocked | None, None, tuple[LineRecord, LineRecord]]:
        """Run the corrupted and the clean line. Raises UsageError where layers by themselves compute other values."""
        forward = self.runtime.forward
        kept = 3 * len(self.names.writers) + 6 * forward.layers
        yield from room.take(kept * len(self.clean) * forward.anatomy.hidden_size * 4)
        corrupted = yield from LineRecord.of(forward, self.layers, self.corrupted)
        clean = yield from LineRecord.of(forward, self.layers, self.clean)
        with recording(False):
            require_sum(clean.written_WSD - corrupted.written_WSD, (clean.entries[-1] - corrupted.entries[-1])[None])
        alone = yield from LinesAlone(self.runtime, self.session).run(self.clean, (), residuals=False)
        if not equal_but_for_rounding(_end(forward, clean)[None], alone.logits_V[None], clean.entries[-1].dtype):
            raise UsageError(
                "The edges of this model are not patched: its layers compute other values by themselves than in its "
                "own forward."
            )
        return corrupted, clean

    def _values(self, corrupted: LineRecord, clean: LineRecord) -> tuple[float, float]:
        of = (self.metric.of(_end(self.runtime.forward, one)) for one in (corrupted, clean))
        return next(of), next(of)

    def _passes(
        self, line: PatchedLine, sets: Iterable[Patched], total: int
    ) -> Generator[Blocked | None, None, list[float]]:
        """Run the line once for each of `total` sets of patched edges. Return the metric of each, or of the first where
        it is ended early."""
        found: list[float] = []
        for number, patched in enumerate(sets):
            publish_progress(self.runtime, self.session, "patching edges", number, total, "passes")
            if found and self.session.progress.can_end():
                break
            before = line.calls
            logits_V = yield from line.logits(patched)
            self.runtime.counters.count_layers(line.calls - before)
            found.append(self.metric.of(logits_V))
            yield None
        return found


def _require_few(edges: int) -> None:
    if edges > MOST_EDGES:
        raise UsageError(f"The circuits of one request have at most {MOST_EDGES:,} edges together, not {edges:,}.")


def _end(forward: Forward, record: LineRecord) -> Tensor:
    return forward.lens(record.entries[-1][-1:])[0]


def _before(layers: Sequence[LayerEnds], writers: int) -> Iterator[int]:
    for layer, ends in enumerate(layers):
        first = writers_before(layers, layer)
        for point, tap in ends.readers.items():
            if point == "mlp_in":
                yield first + (0 if ends.mid is None else ends.heads)
            else:
                yield from [first] * (tap.heads or 0)
    yield writers
