"""A line in which some edges carry what their writers write in another line, and all others what they write here
(edge patching; the forward of Hanna et al. 2024, arXiv 2403.17806, for a circuit).

A reader reads the residual as it stands, and for each of its edges that is patched the writer's other value in place of
the present one. What it makes of that comes from the model's own layer, run from that residual as far as the reader's
point. A reader whose edges are all patched reads the other line's residual itself, bit for bit.

Shapes: W writers, S positions, D features; V tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.methods.attribution.engine.line import recording
from djinn_jupyter.methods.circuits.engine.edges import LayerEnds, spelled, writers_before
from djinn_jupyter.methods.circuits.engine.line_record import Called, LineRecord, Put, called

Patched = Mapping[str, frozenset[int]]
"""By a reader's name the numbers of the writers whose edges to it are patched."""


class PatchedLine:
    """Runs the line `base` with edges that carry what the line `source` has."""

    def __init__(self, forward: Forward, layers: Sequence[LayerEnds], base: LineRecord, source: LineRecord) -> None:
        self.forward, self.layers, self.base, self.source = forward, layers, base, source
        self.calls = 0  # of layers

    def logits(self, patched: Patched) -> Generator[None, None, Tensor]:
        """Return the logits [V] of the last position, a layer a step. Layers before the first reader with a patched
        edge are those of the base line."""
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
        """Run one layer, and note what its writers add. Return the residual behind it."""
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
        """Return by tap what puts the values of heads with patched edges in place. Heads with the same edges share a
        call."""
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
        self,
        layer: int,
        hidden_SD: Tensor,
        written_WSD: Tensor,
        puts: Mapping[Tap, Put],
        writers: frozenset[int],
    ) -> dict[Tap, Put]:
        """Return what puts the value of an MLP with patched edges in place."""
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
        self,
        writers: frozenset[int] | None,
        before: int,
        own_SD: Tensor,
        other_SD: Tensor,
        written_WSD: Tensor,
    ) -> Tensor:
        """Return the residual that a reader reads: the line's own, but for the writers whose edges are patched."""
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
