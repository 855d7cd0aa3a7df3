"""A recorded sequence (the residual between layers and before each MLP, and every writer's addition), and runs of it
with patched edges.

Shapes: W writers, S positions, D features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.conditions import Metric
from djinn_jupyter.engine.passes.forward import Forward, device_memory_for
from djinn_jupyter.engine.passes.shared_cache import equal_but_for_rounding
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.run import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime, Space
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.attributing import why_no_line
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.methods.circuits.engine.edges import LayerEnds, names_of, require_sum, spelled, wide, writers_before
from djinn_jupyter.methods.circuits.request import MOST_EDGES, CircuitsRun, Edge, EdgesAttributed
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.wire.sites import Site

Put = Callable[[Tensor], Tensor]


@dataclass(slots=True, kw_only=True, eq=False)
class Called:
    """A layer after its call: the hidden state after it, None if the call was left early, and the raw values `seen`."""

    after_1SD: Tensor | None = None
    seen: dict[Site, Tensor] = field(default_factory=dict)


def called(
    forward: Forward,
    arguments: LayerArguments,
    layer: int,
    hidden_SD: Tensor,
    *,
    puts: Mapping[Tap, Put],
    wanted: Sequence[Tap],
    leave: bool = False,
) -> Called:
    """Run one layer from `hidden_SD` with replaced values at taps; record the values at the taps `wanted`, and with
    `leave` stop after the last of them."""
    found, form = Called(), forward.anatomy.forms[layer]
    sites = {tap.site for tap in wanted}

    def met(tap: Tap, raw: Tensor) -> Tensor | None:
        changed = puts[tap](raw) if tap in puts else None
        if tap.site in sites:
            found.seen[tap.site] = (raw if changed is None else changed).clone()
            if leave and len(found.seen) == len(sites):
                raise Leave
        return changed

    taps = {tap.site: tap for tap in (*puts, *wanted)}
    with recording(False), suppress(Leave):
        args, kwargs = form.put(*arguments.of_layer[layer], hidden_SD[None].clone())
        with forward.calling(), catch(taps.values(), met):
            found.after_1SD = form.unwrap(forward.anatomy.layers[layer](*args, **kwargs))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineRecord:
    """`entries` are the residual before each layer and after the last; `mids` before each MLP, None where that reads
    the layer's entry; `written_WSD` each writer's addition."""

    arguments: LayerArguments
    entries: Sequence[Tensor]
    mids: Sequence[Tensor | None]
    written_WSD: Tensor

    @classmethod
    def of(
        cls, forward: Forward, layers: Sequence[LayerEnds], tokens: tuple[int, ...]
    ) -> Generator[None, None, LineRecord]:
        """Run a sequence, a layer a step."""
        arguments = LayerArguments.of(forward, tokens)
        hidden = arguments.entry_1SD[0]
        entries, mids, written = [hidden], list[Tensor | None](), [wide(hidden)[None]]
        for layer, ends in enumerate(layers):
            wanted = [ends.z, ends.mlp_out, *([] if ends.mid is None else [ends.mid])]
            ran = called(forward, arguments, layer, hidden, puts={}, wanted=wanted)
            assert ran.after_1SD is not None
            with recording(False), forward.calling():
                written.append(ends.added(ran.seen[ends.z.site], ran.seen[ends.mlp_out.site]))
            mids.append(None if ends.mid is None else ends.mid.read(ran.seen[ends.mid.site]))
            hidden = ran.after_1SD[0]
            entries.append(hidden)
            yield
        with recording(False):
            return cls(arguments=arguments, entries=entries, mids=mids, written_WSD=torch.cat(written))


# A run in which some edges carry their writers' values of another sequence, and all others the present values (edge
# patching; the forward of Hanna et al. 2024, arXiv 2403.17806, for a circuit). A reader reads the present residual,
# with the writer's other value in place of the present one for each patched edge. The model's own layer computes its
# output, run from that residual as far as the reader's point. A reader whose edges are all patched reads the other
# sequence's residual itself, bit for bit. Shapes: W writers, S positions, D features; V tokens.

Patched = Mapping[str, frozenset[int]]
"""By a reader's name the numbers of the writers whose edges to it are patched."""


class PatchedLine:
    """Runs the sequence `base` with edges that carry values of the sequence `source`."""

    def __init__(self, forward: Forward, layers: Sequence[LayerEnds], base: LineRecord, source: LineRecord) -> None:
        self.forward, self.layers, self.base, self.source = forward, layers, base, source
        self.calls = 0  # of layers

    def logits(self, patched: Patched) -> Generator[None, None, Tensor]:
        """Return the logits [V] of the last position, a layer a step. Layers before the first reader with a patched
        edge are those of the base."""
        first = next((layer for layer in range(len(self.layers)) if self._reads(layer, patched)), len(self.layers))
        hidden, written_WSD = self.base.entries[first], self.base.written_WSD
        if first < len(self.layers):
            with recording(False):
                written_WSD = written_WSD.clone()
        for layer in range(first, len(self.layers)):
            hidden = self._through(layer, hidden, written_WSD, patched)
            yield
        last = self.source.entries[-1]
        read_SD = self._read(patched.get("logits"), len(written_WSD), hidden, last, written_WSD)
        return self.forward.lens(read_SD[-1:])[0]

    def _reads(self, layer: int, patched: Patched) -> bool:
        return any(patched.get(name) for name, _, _ in self._readers(layer))

    def _readers(self, layer: int) -> list[tuple[str, str, int | None]]:
        """Return the name, the point and the head of each reader of a layer."""
        found: list[tuple[str, str, int | None]] = []
        for point, tap in self.layers[layer].readers.items():
            heads: Sequence[int | None] = [None] if point == "mlp_in" else range(tap.heads or 0)
            found += [(spelled(point, layer, head), point, head) for head in heads]
        return found

    def _through(self, layer: int, hidden_SD: Tensor, written_WSD: Tensor, patched: Patched) -> Tensor:
        """Run one layer, and record its writers' additions. Return the residual after it."""
        ends, before = self.layers[layer], writers_before(self.layers, layer)
        puts = self._attention(layer, hidden_SD, written_WSD, patched)
        of_mlp = patched.get(f"mlp_in.{layer}")
        if of_mlp:
            puts |= self._mlp(layer, hidden_SD, written_WSD, puts, of_mlp)
        ran = self._called(layer, hidden_SD, puts, [ends.z, ends.mlp_out])
        assert ran.after_1SD is not None
        with recording(False), self.forward.calling():
            added = ends.added(ran.seen[ends.z.site], ran.seen[ends.mlp_out.site])
            written_WSD[before : before + len(added)] = added
        return ran.after_1SD[0]

    def _attention(self, layer: int, hidden_SD: Tensor, written_WSD: Tensor, patched: Patched) -> dict[Tap, Put]:
        """Return by tap the function that replaces values of heads with patched edges. Equal edges share a call."""
        ends, before = self.layers[layer], writers_before(self.layers, layer)
        alike: dict[frozenset[int], list[tuple[Tap, int]]] = defaultdict(list)
        for name, point, head in self._readers(layer):
            if head is not None and patched.get(name):
                alike[patched[name]].append((ends.readers[point], head))
        made: dict[Tap, list[tuple[int, Tensor]]] = defaultdict(list)
        for writers, readers in alike.items():
            read_SD = self._read(writers, before, hidden_SD, self.source.entries[layer], written_WSD)
            taps = list({tap.site: tap for tap, _ in readers}.values())
            ran = self._called(layer, read_SD, {}, taps, leave=True)
            for tap, head in readers:
                made[tap].append((head, ran.seen[tap.site]))
        return {tap: _heads_put(tap, heads) for tap, heads in made.items()}

    def _mlp(
        self, layer: int, hidden_SD: Tensor, written_WSD: Tensor, puts: Mapping[Tap, Put], writers: frozenset[int]
    ) -> dict[Tap, Put]:
        """Return the function that replaces the value of an MLP with patched edges."""
        ends, before = self.layers[layer], writers_before(self.layers, layer)
        tap, mid = ends.readers["mlp_in"], ends.mid
        if mid is None:
            read_SD = self._read(writers, before, hidden_SD, self.source.entries[layer], written_WSD)
            ran = self._called(layer, read_SD, {}, [tap], leave=True)
        else:
            own = self._called(layer, hidden_SD, puts, [ends.z, mid], leave=True)
            other_SD = self.source.mids[layer]
            assert other_SD is not None
            with recording(False), self.forward.calling():
                written_WSD[before : before + ends.heads] = ends.heads_added(own.seen[ends.z.site])
            reads = self._read(writers, before + ends.heads, mid.read(own.seen[mid.site]), other_SD, written_WSD)
            ran = self._called(layer, hidden_SD, {mid: lambda raw: mid.write(raw, reads)}, [tap], leave=True)
        value = ran.seen[tap.site]
        return {tap: lambda raw: value}

    def _read(
        self, writers: frozenset[int] | None, before: int, own_SD: Tensor, other_SD: Tensor, written_WSD: Tensor
    ) -> Tensor:
        """Return the residual for a reader: the base's own, except for the writers of patched edges."""
        if not writers:
            return own_SD
        if len(writers) == before:
            return other_SD
        at = torch.tensor(sorted(writers), device=written_WSD.device)
        with recording(False):
            change_SD = (self.source.written_WSD[at] - written_WSD[at]).sum(0)
            return (own_SD + change_SD).to(own_SD.dtype)

    def _called(
        self, layer: int, hidden_SD: Tensor, puts: Mapping[Tap, Put], wanted: Sequence[Tap], *, leave: bool = False
    ) -> Called:
        self.calls += 1
        arguments = self.base.arguments
        return called(self.forward, arguments, layer, hidden_SD, puts=puts, wanted=wanted, leave=leave)


def _heads_put(tap: Tap, heads: Sequence[tuple[int, Tensor]]) -> Put:
    def put(raw: Tensor) -> Tensor:
        value = tap.read(raw).clone()
        for head, other in heads:
            value[:, head] = tap.read(other)[:, head]
        return tap.write(raw, value)

    return put


# The pairs of sequences of a session's circuits, recorded once: kept until the session closes, or until others need
# their memory. Used on the engine's thread.

Pair = tuple[LineRecord, LineRecord]
Record = Callable[[Reservation], Generator[Blocked | None, None, Pair]]


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedPair:
    """A recorded pair of sequences and its bytes. While it is `used` it cannot be dropped."""

    pair: Pair
    room: Reservation
    used: bool = False

    @contextmanager
    def in_use(self) -> Iterator[Pair]:
        self.used = True
        try:
            yield self.pair
        finally:
            self.used = False


class Recordings:
    """Recordings by session and by the data that determines each."""

    def __init__(self, budget: Budget, space: Space) -> None:
        self.workspace = Workspace(budget, space, "edges", idle=self._idle, release=self._release)
        self._kept: dict[str, dict[Hashable, RecordedPair]] = {}

    def of(
        self, session: Session, computed_from: Hashable, record: Record
    ) -> Generator[Blocked | None, None, RecordedPair]:
        """Return the recording of a pair of sequences, made by `record` if needed. Raises like `record`."""
        own = self._kept.setdefault(session.name, {})
        if computed_from not in own:
            room = Reservation(self.workspace, session)
            try:
                pair = yield from record(room)
            except BaseException:
                room.give_back(room.held)
                raise
            own[computed_from] = RecordedPair(pair=pair, room=room)
        return own[computed_from]

    def let_go(self, session: Session) -> None:
        """Drop the recordings of a session that has closed."""
        for one in self._kept.pop(session.name, {}).values():
            one.room.give_back(one.room.held)

    def _idle(self) -> int:
        return sum(one.room.held for own in self._kept.values() for one in own.values() if not one.used)

    def _release(self) -> int:
        released = self._idle()
        for own in self._kept.values():
            for computed_from in [key for key, one in own.items() if not one.used]:
                room = own.pop(computed_from).room
                room.give_back(room.held)
        return released


# Patched edges, a pass each: single ones, and whole circuits with everything else from the other sequence.

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
        """Return the edges, each once, a few thousand at a time. Raises UsageError for an unknown edge."""
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
        """Raise UsageError for an unknown edge."""
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
    """Passes of one session over two sequences, which are recorded first. `chosen` are the requested edges, none for
    all; after an early end of `effects`, the patched ones."""

    def __init__(
        self, runtime: Runtime, session: Session, lines: tuple[tuple[int, ...], tuple[int, ...]], metric: Metric
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
        """Compute the change of the corrupted prompt's metric by each edge. Raises SlabFull; UsageError; UnknownSite
        where the model's edges cannot be distinguished."""
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
        """Compute the metric of each circuit. The sequences are recorded once in a session. Raises like `effects`."""
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
        """All data that determines the recorded sequences."""
        adapter = self.session.adapter
        return self.corrupted, self.clean, self.session.attention, None if adapter is None else adapter.identity

    def _memory(self) -> AbstractContextManager[None]:
        return device_memory_for("the passes with patched edges", ADVICE)

    def _recorded(self, room: Reservation) -> Generator[Blocked | None, None, tuple[LineRecord, LineRecord]]:
        """Run the corrupted and the clean sequence. UsageError where layers alone compute other values."""
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
        """Run the sequence once for each of `total` sets of patched edges. Return the metric of each, or of the first
        ones after an early end."""
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
