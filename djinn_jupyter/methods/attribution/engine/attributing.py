"""An attribution under way: the lines forward, the way back, and the reply."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.requests.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.progress import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces, Steps
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import OverQuota, SlabFull
from djinn_jupyter.methods.attribution.engine.carried import KEYS, QUERIES, carry, z_of
from djinn_jupyter.methods.attribution.engine.estimates import Estimates
from djinn_jupyter.methods.attribution.engine.line import GradedLine, LayerArguments, counted, recording
from djinn_jupyter.methods.attribution.engine.slopes import metric_gradient
from djinn_jupyter.methods.attribution.engine.trial import GraphSize, Trials
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import swept_edits
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.places import Spot
from djinn_jupyter.methods.sweep.request import Estimate, Measured, Swept
from djinn_jupyter.wire.sites import Site

ADVICE: Final = "Close sessions, or give shorter lines."
CARRYING: Final = 2  # runs of a layer by which a change is carried through its attention
MAPS: Final = 4  # as many values as an attention map has, in float64, while it is
WAY_BACK: Final = 2  # graphs of one layer: its own while it is gone through, and as much of gradients beside it


class Attributing:
    """One attribution of one session. `done` counts the layers run, forward and back."""

    def __init__(
        self, runtime: Runtime, session: Session, asked: CheckedSweep, estimate: Estimate, trials: Trials
    ) -> None:
        self.runtime, self.session, self.asked = runtime, session, asked
        self.estimate, self.trials = estimate, trials
        self.estimates = Estimates(
            places=asked.places,
            layers=runtime.forward.layers,
            weight=1 / estimate.steps,
            dropping="cancellation" in estimate.corrections,
        )
        taps = self.asked.places.taps.values() if "attention" in self.estimate.corrections else ()
        self._carried = [tap for tap in taps if tap.site.point in (*QUERIES, *KEYS)]
        self.done = 0
        self._clean: dict[Site, Tensor] = {}

    def steps(self, workspace: Workspace) -> Steps[Swept]:
        """Compute every cell. Raises SlabFull and OutOfDeviceMemory where memory does not suffice; UsageError where the
        model gives no gradients."""
        self._count(0)
        with device_memory_for("the way back of this attribution", ADVICE), workspace.opened(self.session) as room:
            return (yield from self._steps(room))

    def _steps(self, room: Reservation) -> Steps[Swept]:
        asked, forward = self.asked, self.runtime.forward
        size = yield from self.trials.size(self.runtime, LinesAlone(self.runtime, self.session))
        keep = yield from self._reserved(room, size)
        taps = tuple(asked.places.taps.values())
        clean_V: Tensor | None = None
        source: GradedLine | None = None
        if asked.source is not None:
            source = GradedLine(forward, LayerArguments.of(forward, asked.source), taps)
            clean_V = source.logits((yield from self._counted(source.onward(self._keep_clean))))
        through = {tap.site: tap for tap in (*taps, *(z_of(forward, tap) for tap in self._carried))}
        line = GradedLine(forward, LayerArguments.of(forward, asked.line), through.values())
        graphs = self.estimate.steps == 1
        end_1SD = yield from self._counted(line.onward(self._note_change, graphs=graphs, keep=keep))
        unchanged_V = line.logits(end_1SD)
        if graphs:
            yield from self._carry(line)
            yield from self._back(line, unchanged_V)
        else:
            assert source is not None
            yield from self._between(line, source, keep)
        return self._reply(unchanged_V, clean_V, keep)

    def _between(self, line: GradedLine, source: GradedLine, keep: bool) -> Pieces:
        """Go forward and back from each of the midpoints of equal parts of the way between two lines' entries."""
        one, other = line.arguments.entry_1SD, source.arguments.entry_1SD
        for step in range(self.estimate.steps):
            with recording(False):
                entry = torch.lerp(one, other, (step + 0.5) / self.estimate.steps)
            end_1SD = yield from self._counted(line.onward(entry_1SD=entry, graphs=True, keep=keep))
            yield from self._back(line, line.logits(end_1SD))

    def _back(self, line: GradedLine, logits_V: Tensor) -> Pieces:
        by_logits = [metric_gradient(metric, logits_V) for metric in self.asked.metrics.each]
        yield from self._counted(line.back(by_logits, self.estimates, dropping=self.estimates.dropping))

    def _carry(self, line: GradedLine) -> Pieces:
        """Carry the changes of queries and keys through attention, a layer a step."""
        places, forward = self.asked.places, self.runtime.forward
        rows = places.alignment.rows
        row = None if "row" in places.parts else 0 if rows is None else rows[0]
        for tap in self._carried:
            carried = carry(forward, line, tap, self.estimates.changes[tap.site], row)
            self.estimates.carried.setdefault(z_of(forward, tap).site, {})[tap.site] = carried
            self._count(CARRYING)
            yield None

    def _reserved(self, room: Reservation, size: GraphSize) -> Generator[Blocked | None, None, bool]:
        """Take the memory of the attribution. Return whether every layer's graph is kept until the way back; where it
        has no room, each is made there again."""
        asked = self.asked
        length, graph = max(len(asked.line), len(asked.source or ())), size.at(len(asked.line))
        layers = self.runtime.forward.layers
        hidden = self.runtime.forward.anatomy.hidden_size * max(one.itemsize for one in self._dtypes)
        values = (layers + 2 + len(asked.metrics.each)) * length * hidden
        values += sum(self._value_bytes(tap, length) for tap in asked.places.taps.values())
        values += sum(CARRYING * self._value_bytes(z_of(self.runtime.forward, tap), length) for tap in self._carried)
        values += sum(MAPS * length * length * (tap.heads or 1) * 8 for tap in self._carried)
        values += layers * len(asked.metrics.each) * length * hidden if self.estimates.dropping else 0
        try:
            yield from room.take(values + (layers + WAY_BACK) * graph)
        except (SlabFull, OverQuota):
            try:
                yield from room.take(values + WAY_BACK * graph)
            except SlabFull as error:
                raise SlabFull(
                    f"An attribution of a line of {len(asked.line)} tokens has no room, even with each layer's graph "
                    f"made again on the way back: {error}"
                ) from None
            return False
        return True

    @property
    def _dtypes(self) -> tuple[torch.dtype, ...]:
        return self.runtime.forward.anatomy.dtypes

    def _value_bytes(self, tap: Tap, length: int) -> int:
        """Return the bytes of a tap's value in the model's dtype, and of its change in float32."""
        width = length if tap.width is None else tap.width
        return length * width * (tap.heads or 1) * (max(one.itemsize for one in self._dtypes) + 4)

    # --- values ----------------------------------------------------------------------------------------------------

    def _keep_clean(self, tap: Tap, raw: Tensor) -> None:
        self._clean[tap.site] = tap.read(raw).clone()

    def _note_change(self, tap: Tap, raw: Tensor) -> None:
        """Note by how much the value at a tap would change. Without a clean line or an edit it is the value itself."""
        asked = self.asked
        if all(tap.site != own.site for own in asked.places.taps.values()):
            return
        with recording(False):
            value, clean = tap.read(raw), self._clean.pop(tap.site, None)
            if asked.edit is None and clean is None:
                self.estimates.changes[tap.site] = value.to(torch.float32, copy=True)
                return
            rows, others = asked.places.alignment.rows, asked.places.alignment.of_clean(asked.places.alignment.rows)
            spot = Spot(tap=tap, rows=rows, source_rows=others, units=None)
            part = swept_edits.part_of(asked.edit, spot, value, value if clean is None else clean, asked.seed)
            self.estimates.changes[tap.site] = _change(value, part, rows)

    # --- the report ------------------------------------------------------------------------------------------------

    def _counted(self, going: Generator[None, None, Tensor | None]) -> Generator[None, None, Tensor]:
        return counted(going, lambda: self._count(1), self.runtime.giving_way)

    def _count(self, layers: int) -> None:
        self.done += layers
        ways = 2 * self.estimate.steps + (self.asked.source is not None) + (self.estimate.steps > 1)
        total = max(self.done, ways * self.runtime.forward.layers + self.estimate.steps + CARRYING * len(self._carried))
        self.runtime.counters.count_layers(layers)
        publish_progress(self.runtime, self.session, "attributing", self.done, total, "layers")

    def _reply(self, unchanged_V: Tensor, clean_V: Tensor | None, keep: bool) -> Swept:
        asked, places = self.asked, self.asked.places
        corrupted = asked.metrics.of(unchanged_V)
        clean = None if clean_V is None else asked.metrics.of(clean_V)
        values = self.estimates.values(len(asked.metrics.each))
        again = ("Each layer's graph was made again on the way back: all of them had no room.",)
        return Swept(
            site=places.site,
            over=places.over,
            places=places.along,
            texts=tuple(self.runtime.tokenizer.text_of(token) for token in asked.line),
            edit=_spelled(asked, self.estimate),
            measured=tuple(
                Measured(
                    metric=text,
                    values=to_array(values[..., number].contiguous()),
                    corrupted=corrupted[number],
                    clean=None if clean is None else clean[number],
                    largest_difference=None,
                    tolerance=0.0,
                )
                for number, text in enumerate(asked.metrics.texts)
            ),
            mode=asked.mode,
            seed=asked.seed,
            computed=math.prod(places.shape),
            rechecked=(),
            notes=(*asked.notes, *(() if keep else again)),
            windows=tuple(places.windows.items()),
            in_pairs=places.in_pairs,
            estimate=self.estimate,
            recipe=asked.recipe,
            made=asked.made,
        )


def _change(value: Tensor, part: Tensor, rows: Sequence[int] | None) -> Tensor:
    """Return by how much a value changes, float32, where `part` is put at these rows, all of them where they are
    None."""
    if rows is None:
        return part.to(torch.float32) - value.to(torch.float32)
    change = torch.zeros_like(value, dtype=torch.float32)
    change[list(rows)] = part.to(torch.float32) - value[list(rows)].to(torch.float32)
    return change


def _spelled(asked: CheckedSweep, estimate: Estimate) -> str:
    change = "activation" if asked.edit is None and asked.source is None else swept_edits.spell(asked.edit)
    steps = f", {estimate.steps} steps" if estimate.steps > 1 else ""
    corrected = f", {' and '.join(estimate.corrections)} corrected" if estimate.corrections else ""
    return f"gradient x {change}{steps}{corrected}"
