"""An attribution, and the trial of a model by short sequences: whether it goes backward, and the bytes of a layer's
graph."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.weights.host_weights import plain_parts
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading import quantized
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes import conditions, shared_cache
from djinn_jupyter.engine.passes.forward import Forward, device_memory_for
from djinn_jupyter.engine.residency.workspace import Reservation, Workspace
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.run import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system import arrays, device
from djinn_jupyter.errors import OverQuota, SlabFull, UsageError
from djinn_jupyter.methods.attribution.engine import estimates
from djinn_jupyter.methods.attribution.engine.line import GradedLine, GradientStream, LayerArguments, counted, recording
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.places import Spot, SweptPlaces
from djinn_jupyter.methods.sweep.engine.sweep import SweepWay, way_to_sweep
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import Estimate, Measured, Sweep, Swept
from djinn_jupyter.wire import modules, sites

LENGTHS: Final = (4, 8, 12)
OVER: Final = 1.1  # allocators round up


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """The bytes that the graph of the largest layer keeps, measured at the three `LENGTHS`. Other lengths follow the
    parabola through these, because attention maps grow quadratically."""

    measured: tuple[int, int, int]

    def at(self, length: int) -> int:
        """Return the bytes of one layer's graph for `length` tokens."""
        (a, b, c), (low, mid, high) = LENGTHS, self.measured
        slope, next_slope = (mid - low) / (b - a), (high - mid) / (c - b)
        bend = max(0.0, (next_slope - slope) / (c - a))
        return int(OVER * (low + slope * (length - a) + bend * (length - a) * (length - b))) if length > a else low


class Trials:
    """The findings about one model, made at the first attribution, for each kind of attention and each adapter."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, modules.AdapterIdentity | None], GraphSize | str] = {}

    def size(self, runtime: Runtime, alone: LinesAlone) -> Generator[Blocked | None, None, GraphSize]:
        """Return the sizes of this model's graphs. Raises UsageError where it cannot go backward."""
        forward = runtime.forward
        way = (forward.attention, None if forward.adapter is None else forward.adapter.identity)
        if way not in self._found:
            why = why_no_line(forward) or quantized.why_no_gradients(forward.model)
            self._found[way] = why or (yield from _tried(runtime, alone))
        found = self._found[way]
        if isinstance(found, str):
            raise UsageError(f"This model gives no gradients: {found}. Sweep instead.")
        return found


def why_no_line(forward: Forward) -> str | None:
    """Return why a model's layers cannot run one by one and go backward, None where only a trial can show it."""
    if len({forward.home_at(layer) for layer in range(forward.layers + 1)}) > 1:
        return "its layers lie on several devices"
    if forward.weights.streamed:
        return "its weights stream, and are gone from the device by the way back"
    if forward.anatomy.mappings:
        return "its layers pass on more than the hidden state"
    return shared_cache.why_not_batched(forward)


def _tried(runtime: Runtime, alone: LinesAlone) -> Generator[Blocked | None, None, GraphSize | str]:
    sizes: list[int] = []
    tokens: tuple[int, ...] = ()
    forward, generator = runtime.forward, torch.Generator().manual_seed(1)
    line: GradedLine | None = None
    end_1SD = torch.empty(0)
    try:
        for length in LENGTHS:
            tokens = tuple(torch.randint(runtime.description.vocab_size, (length,), generator=generator).tolist())
            line = GradedLine(forward, LayerArguments.of(forward, tokens), ())
            end_1SD, size = yield from _measured(line)
            sizes.append(size)
        assert line is not None
        logits_V = line.logits(end_1SD)
        yield from line.back([torch.ones_like(logits_V)], _Unread())
    except (*shared_cache.REFUSALS, UsageError) as error:
        if isinstance(error, BaseException) and device.out_of_memory(error):
            raise  # shows nothing about the family
        return f"its layers refuse to ({first_line(error).rstrip('.')})"
    base = yield from alone.run(tokens, (), residuals=False)
    if not shared_cache.equal_but_for_rounding(logits_V[None], base.logits_V[None], end_1SD.dtype):
        return "its layers compute other values by themselves than in its own forward"
    return GraphSize(measured=(sizes[0], sizes[1], sizes[2]))


class _Unread:
    """Takes no gradient: a trial has no taps."""

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None:
        raise AssertionError("a line without taps has no gradient to take")


def _measured(line: GradedLine) -> Generator[None, None, tuple[Tensor, int]]:
    """Run a sequence forward. Return its end, and the bytes that the largest graph of a layer keeps."""
    largest = 0
    going = line.onward(graphs=True)
    while True:
        saved = _KeptBytes(line)
        try:
            with saved.counted():
                next(going)
        except StopIteration as done:
            end: Tensor = done.value
            return end, largest
        largest = max(largest, saved.nbytes)
        yield


class _KeptBytes:
    """Counts the bytes that graphs keep, each storage once, without weights, buffers and the layers' arguments."""

    def __init__(self, line: GradedLine) -> None:
        model: nn.Module = line.forward.model
        others = (*model.parameters(), *model.buffers(), *line.arguments.tensors())
        self._seen = {part.untyped_storage().data_ptr() for tensor in others for part in plain_parts(tensor)}
        self._held: list[Tensor] = []  # so that no other storage reuses a counted address
        self.nbytes = 0

    def counted(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        for part in plain_parts(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._held.append(part.detach())
                self.nbytes += storage.nbytes()
        return tensor


# An attribution in progress: the sequences forward, the way back, and the reply.

ADVICE: Final = "Close sessions, or give shorter lines."
CARRYING: Final = 2  # runs of a layer that propagate a change through its attention
MAPS: Final = 4  # as many values as an attention map has, in float64, meanwhile
WAY_BACK: Final = 2  # graphs of one layer: its own while it is processed, and as much for gradients


class Attributing:
    """One attribution of one session. `done` counts the layers run, forward and back."""

    def __init__(
        self, runtime: Runtime, session: Session, asked: CheckedSweep, estimate: Estimate, trials: Trials
    ) -> None:
        self.runtime, self.session, self.asked = runtime, session, asked
        self.estimate, self.trials = estimate, trials
        self.estimates = estimates.Estimates(
            places=asked.places,
            layers=runtime.forward.layers,
            weight=1 / estimate.steps,
            dropping="cancellation" in estimate.corrections,
        )
        taps = self.asked.places.taps.values() if "attention" in self.estimate.corrections else ()
        self._carried = [tap for tap in taps if tap.site.point in (*estimates.QUERIES, *estimates.KEYS)]
        self.done = 0
        self._clean: dict[sites.Site, Tensor] = {}

    def steps(self, workspace: Workspace) -> Steps[Swept]:
        """Compute every cell. Raises SlabFull and OutOfDeviceMemory for want of memory; UsageError without
        gradients."""
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
        through = {tap.site: tap for tap in (*taps, *(estimates.z_of(forward, tap) for tap in self._carried))}
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
        """Go forward and back from each of the midpoints of equal parts of the path between two entries."""
        one, other = line.arguments.entry_1SD, source.arguments.entry_1SD
        for step in range(self.estimate.steps):
            with recording(False):
                entry = torch.lerp(one, other, (step + 0.5) / self.estimate.steps)
            end_1SD = yield from self._counted(line.onward(entry_1SD=entry, graphs=True, keep=keep))
            yield from self._back(line, line.logits(end_1SD))

    def _back(self, line: GradedLine, logits_V: Tensor) -> Pieces:
        by_logits = [estimates.metric_gradient(metric, logits_V) for metric in self.asked.metrics.each]
        yield from self._counted(line.back(by_logits, self.estimates, dropping=self.estimates.dropping))

    def _carry(self, line: GradedLine) -> Pieces:
        """Propagate the changes of queries and keys through attention, a layer a step."""
        places, forward = self.asked.places, self.runtime.forward
        rows = places.alignment.rows
        row = None if "row" in places.parts else 0 if rows is None else rows[0]
        for tap in self._carried:
            carried = estimates.carry(forward, line, tap, self.estimates.changes[tap.site], row)
            self.estimates.carried.setdefault(estimates.z_of(forward, tap).site, {})[tap.site] = carried
            self._count(CARRYING)
            yield None

    def _reserved(self, room: Reservation, size: GraphSize) -> Generator[Blocked | None, None, bool]:
        """Reserve the memory of the attribution. Return whether every layer's graph is kept until the way back; without
        room, each is recomputed there."""
        asked = self.asked
        length, graph = max(len(asked.line), len(asked.source or ())), size.at(len(asked.line))
        layers = self.runtime.forward.layers
        hidden = self.runtime.forward.anatomy.hidden_size * max(one.itemsize for one in self._dtypes)
        values = (layers + 2 + len(asked.metrics.each)) * length * hidden
        values += sum(self._value_bytes(tap, length) for tap in asked.places.taps.values())
        values += sum(
            CARRYING * self._value_bytes(estimates.z_of(self.runtime.forward, tap), length) for tap in self._carried
        )
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
        """Record the change of the value at a tap. Without a clean sequence or an edit it is the value itself."""
        asked = self.asked
        if all(tap.site != own.site for own in asked.places.taps.values()):
            return
        with recording(False):
            value, clean = tap.read(raw), self._clean.pop(tap.site, None)
            if asked.request.edit is None and clean is None:
                self.estimates.changes[tap.site] = value.to(torch.float32, copy=True)
                return
            rows, others = asked.places.alignment.rows, asked.places.alignment.of_clean(asked.places.alignment.rows)
            spot = Spot(tap=tap, rows=rows, source_rows=others, units=None)
            part = edits.part_of(asked.request.edit, spot, value, value if clean is None else clean, asked.request.seed)
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
                    values=arrays.to_array(values[..., number].contiguous()),
                    corrupted=corrupted[number],
                    clean=None if clean is None else clean[number],
                    largest_difference=None,
                    tolerance=0.0,
                )
                for number, text in enumerate(asked.metrics.texts)
            ),
            mode=asked.request.mode,
            seed=asked.request.seed,
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
    """Return the change of a value, float32, when `part` replaces these rows (None: all)."""
    if rows is None:
        return part.to(torch.float32) - value.to(torch.float32)
    change = torch.zeros_like(value, dtype=torch.float32)
    change[list(rows)] = part.to(torch.float32) - value[list(rows)].to(torch.float32)
    return change


def _spelled(asked: CheckedSweep, estimate: Estimate) -> str:
    change = "activation" if asked.request.edit is None and asked.source is None else edits.spell(asked.request.edit)
    steps = f", {estimate.steps} steps" if estimate.steps > 1 else ""
    corrected = f", {' and '.join(estimate.corrections)} corrected" if estimate.corrections else ""
    return f"gradient x {change}{steps}{corrected}"


# Sweeps with an estimate, as a way to sweep: gradients estimate the cells.


@way_to_sweep
class ByGradients(SweepWay):
    reads_source = False
    in_modules = "Gradients estimate"

    def __init__(self, together: Together) -> None:
        super().__init__(together)
        self._trials = Trials()

    def takes(self, request: Sweep) -> bool:
        return request.estimate is not None

    def check_lines(self, request: Sweep, metrics: conditions.Metrics, line: int, source: int | None) -> None:
        """Raise InvalidCondition and UsageError for a sweep that gradients cannot estimate."""
        for metric in metrics.each:
            estimates.require_slopes(metric)
        others = (request.noise, request.coefs, request.receivers, request.continued, request.chosen)
        if any(others) or request.into == "clean":
            raise UsageError("Gradients estimate a sweep into the corrupted line, of one edit, without noise or paths.")
        if _estimate(request).steps > 1 and source != line:
            raise UsageError(
                "Integrated gradients go from the corrupted line to the clean one, which has to be as long: give such "
                "a line, or one step."
            )

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Raise UsageError for added modules, for an axis along which changes do not add up, and for corrections
        without effect at these places."""
        super().check_places(request, places)
        strange = next((axis for part, axis in places.parts.items() if part not in estimates.SUMMED), None)
        if strange is not None:
            raise UsageError(f"Gradients do not estimate what a cell of the axis {strange} changes: sweep instead.")
        if "attention" not in _estimate(request).corrections:
            return
        if not any(point in (*estimates.QUERIES, *estimates.KEYS) for point, _ in places.taps):
            raise UsageError(
                "The correction of attention is one of queries and keys; attribute q, k, q_rot or k_rot, or leave it "
                "out."
            )
        if _estimate(request).steps > 1:
            raise UsageError("The correction of attention is of one step: leave it out, or the steps.")

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        return Attributing(runtime, session, asked, _estimate(request), self._trials).steps(workspace)


def _estimate(request: Sweep) -> Estimate:
    assert request.estimate is not None
    return request.estimate
