"""Many paths in one pass: each sequence runs from its sender to the receivers with the blocks between frozen, then with
the received values in place to the end of the receivers' last layer, where it joins a wavefront.

A layer through which only the residual passes runs without its blocks: they return their outputs for the base.
Sequences share calls of the model's own layer modules, over all their positions.

Shapes: B sequences, S positions, D features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.hooks.gates import Leave, pick, swap
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.sections import ArgumentAxes, LayerCalls
from djinn_jupyter.engine.passes.shared_cache import BaseRows, SharedCache
from djinn_jupyter.engine.passes.wavefront import CallPlan, CallSize, JoiningLine
from djinn_jupyter.engine.system.device import require_alive, to_home
from djinn_jupyter.methods.common.engine.lines import RunLine
from djinn_jupyter.methods.paths.engine.receivers import Receiver, Receivers, place_of, reaches
from djinn_jupyter.wire.sites import ATTENTION_POINTS, Site

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """A cell's path: `raw` is the value at its `sender`, and `start` the first position where it differs."""

    number: int
    sender: Tap
    raw: Tensor
    start: int


@dataclass(slots=True, kw_only=True, eq=False)
class _UnderWay:
    """Paths between two layers, by their numbers: `hidden` [1, S, D], and the raw values `met` at receivers so far."""

    hidden: dict[int, Tensor] = field(default_factory=dict)
    met: defaultdict[int, dict[Site, Tensor]] = field(default_factory=lambda: defaultdict(dict))

    def bring(self, home: torch.device) -> None:
        """Move the hidden states to `home`, the device of the next layer."""
        self.hidden = {number: to_home(rows, home) for number, rows in self.hidden.items()}

    def rows(self, paths: Sequence[Path]) -> Tensor:
        return torch.cat([self.hidden[path.number] for path in paths])

    def keep(self, paths: Sequence[Path], after_BSD: Tensor) -> None:
        self.hidden.update((path.number, rows) for path, rows in zip(paths, after_BSD.split(1), strict=True))

    def meet(self, paths: Sequence[Path], seen: Mapping[Site, Tensor]) -> None:
        for site, raw in seen.items():
            for path, own in zip(paths, raw.split(raw.shape[0] // len(paths)), strict=True):
                self.met[path.number][site] = own


class PathLines:
    """Runs paths over the sequence `base` to `receivers`, with as many at a time as the `plan` of the sweep's calls
    allows."""

    def __init__(
        self, forward: Forward, base: RunLine, receivers: Receivers, axes: ArgumentAxes, plan: CallPlan
    ) -> None:
        self.forward, self.base, self.receivers = forward, base, receivers
        cache = SharedCache(forward.model.config, BaseRows({}), 0)
        self._calls = LayerCalls.of(forward, base.tokens, cache, axes)
        self._blocks: dict[int, FrozenBlocks] = {}
        self.size = CallSize(plan=plan)
        self.layers_run = 0  # calls of a layer

    def count(self) -> int:
        """Return the calls of layers since the last call of this function."""
        made, self.layers_run = self.layers_run, 0
        return made

    @property
    def frozen_bytes(self) -> int:
        """The bytes of the blocks' outputs for the base, which are kept while paths run."""
        return sum(self.base.raw[tap.site].nbytes for pair in self.receivers.blocks.values() for tap in pair)

    def expected_bytes(self, paths: Sequence[Path]) -> int:
        """Return the bytes of these paths while they run: their hidden states before a layer and after it, and the
        values of senders and receivers."""
        hidden = 3 * self.base.residuals[0].nbytes
        received = 2 * sum(self.base.raw[one.tap.site].nbytes for one in self.receivers.each)
        return sum(hidden + received + 2 * path.raw.nbytes for path in paths)

    def run(self, paths: Sequence[Path]) -> Iterator[list[JoiningLine] | None]:
        """Yield None between two calls of a layer, and at the end each path's sequence from after its receivers."""
        sent = _UnderWay()
        yield from self._send(paths, sent)
        after = _UnderWay(
            hidden={path.number: self.base.residuals[self.receivers.first] for path in paths}, met=sent.met
        )
        yield from self._receive(paths, after)
        yield [
            JoiningLine(
                number=path.number,
                boundary=self.receivers.last_layer + 1,
                start=path.start,
                rows_nD=after.hidden[path.number][0, path.start :].clone(),
            )
            for path in paths
        ]

    # --- from the senders to the receivers -------------------------------------------------------------------------

    def _send(self, paths: Sequence[Path], sent: _UnderWay) -> Iterator[None]:
        gone: list[Path] = []
        for layer in range(min(path.sender.stage for path in paths), self.receivers.last_layer + 2):
            for path in paths:
                if path.sender.boundary == layer:
                    sent.hidden[path.number] = path.raw
                    gone.append(path)
            sent.bring(self.forward.home_at(layer))
            self._note_boundary(layer, gone, sent)
            if layer > self.receivers.last_layer:
                return
            for some in self._cut(gone):
                self._pass_on(layer, some, sent)
                yield None
            joining = [path for path in paths if path.sender.boundary is None and path.sender.stage == layer]
            for some in self._cut(joining):
                self._join(layer, some, sent)
                yield None
            gone += joining

    def _note_boundary(self, boundary: int, paths: Sequence[Path], sent: _UnderWay) -> None:
        for one in self.receivers.each:
            if one.tap.boundary == boundary:
                for path in paths:
                    if reaches(path.sender, one):
                        sent.met[path.number][one.tap.site] = sent.hidden[path.number]

    def _pass_on(self, layer: int, paths: Sequence[Path], sent: _UnderWay) -> None:
        """Run a layer with both its blocks frozen; record the receivers' values."""
        blocks, rows = self._frozen(layer), sent.rows(paths)
        wanted = self._within(layer)
        if wanted:
            reads_attention = any(tap.site.point in ATTENTION_POINTS for tap in wanted)
            attention = self.receivers.blocks[layer][0]
            put = {attention: self._frozen_at(attention, len(paths))} if reads_attention else {}
            with nullcontext() if reads_attention else blocks.left_out(len(paths), attention):
                self._met(layer, paths, rows, put, wanted, sent)
        if layer < self.receivers.last_layer or self._ends_behind(layer):
            with blocks.left_out(len(paths), *blocks.taps):
                sent.keep(paths, self._called(layer, rows))

    def _join(self, layer: int, paths: Sequence[Path], sent: _UnderWay) -> None:
        """Run the senders' layer with their values in place, and its later blocks frozen."""
        sender = paths[0].sender
        frozen = self.receivers.frozen_after(sender, layer)
        rows = self.base.residuals[layer].expand(len(paths), -1, -1)
        put: dict[Tap, Change] = {sender: lambda raw: torch.cat([path.raw for path in paths])}
        wanted = [tap for tap in self._within(layer) if place_of(sender) < place_of(tap)]
        if wanted:
            self._met(layer, paths, rows, put, wanted, sent)
        with self._frozen(layer).left_out(len(paths), *frozen):
            sent.keep(paths, self._called(layer, rows, put))

    def _met(
        self,
        layer: int,
        paths: Sequence[Path],
        rows_BSD: Tensor,
        put: Mapping[Tap, Change],
        wanted: Sequence[Tap],
        sent: _UnderWay,
    ) -> None:
        """Run a layer as far as the last of the taps `wanted`, and record the values there."""
        seen: dict[Site, Tensor] = {}

        def note(tap: Tap, raw: Tensor) -> None:
            seen[tap.site] = raw.clone()
            if len(seen) == len(wanted):
                raise Leave

        with suppress(Leave):
            self._called(layer, rows_BSD, put, wanted, note)
        sent.meet(paths, seen)

    def _ends_behind(self, layer: int) -> bool:
        return any(one.tap.boundary == layer + 1 for one in self.receivers.each)

    def _within(self, layer: int) -> list[Tap]:
        """Return the receivers' taps inside a layer."""
        return [one.tap for one in self.receivers.each if one.tap.boundary is None and one.tap.stage == layer]

    # --- from the receivers on --------------------------------------------------------------------------------------

    def _receive(self, paths: Sequence[Path], after: _UnderWay) -> Iterator[None]:
        for layer in range(self.receivers.first, self.receivers.last_layer + 2):
            after.bring(self.forward.home_at(layer))
            for one in self.receivers.each:
                if one.tap.boundary == layer:
                    after.hidden.update(
                        (path.number, one.put(after.hidden[path.number], after.met[path.number][one.tap.site]))
                        for path in paths
                        if one.tap.site in after.met[path.number]
                    )
            if layer > self.receivers.last_layer:
                return
            for some in self._cut(paths):
                after.keep(some, self._called(layer, after.rows(some), self._values_in(layer, some, after)))
                yield None

    def _values_in(self, layer: int, paths: Sequence[Path], after: _UnderWay) -> dict[Tap, Change]:
        """Return by tap the functions that put the received values of a layer in place."""

        def put(one: Receiver) -> Change:
            def change(raw: Tensor) -> Tensor:
                lines = zip(raw.split(raw.shape[0] // len(paths)), paths, strict=True)
                met = ((own, after.met[path.number].get(one.tap.site)) for own, path in lines)
                return torch.cat([own if value is None else one.put(own, value) for own, value in met])

            return change

        return {one.tap: put(one) for one in self.receivers.each if one.tap in self._within(layer)}

    # --- one call ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _called(
        self,
        layer: int,
        rows_BSD: Tensor,
        put: Mapping[Tap, Change] | None = None,
        wanted: Sequence[Tap] = (),
        note: Callable[[Tap, Tensor], None] = lambda tap, raw: None,
    ) -> Tensor:
        """Return the hidden states after `layer`, with raw tensors changed by `put`; `note` gets those at `wanted`."""
        changes = {tap.site: change for tap, change in (put or {}).items()}

        def meet(tap: Tap, raw: Tensor) -> Tensor | None:
            if tap.site in changes:
                return changes[tap.site](raw)
            note(tap, raw)
            return None

        self.layers_run += 1
        clock = perf_counter if self.forward.device.type != "cpu" else thread_time  # others' work is not this call's
        begun, rows = clock(), rows_BSD.shape[0] * rows_BSD.shape[1]
        with self.forward.shared(rows), catch([*wanted, *(put or {})], meet):
            after = self._calls.call(layer, rows_BSD)
        require_alive(after.device)  # a call on a GPU returns before it is done
        self.size.note(rows, clock() - begun)
        return after

    def _cut(self, paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
        """Yield some paths at a time, as many as fit in a call; one, where a value's first axis does not count
        sequences."""
        at = 0
        while at < len(paths):
            several = all(_counts_lines(tap) for tap in (*self.receivers.taps, *(path.sender for path in paths)))
            count = max(1, self.size.of_next() // len(self.base.tokens)) if several else 1
            yield paths[at : at + count]
            at += count

    def _frozen_at(self, tap: Tap, lines: int) -> Change:
        return lambda raw: _repeat(self.base.raw[tap.site], lines)

    def _frozen(self, layer: int) -> FrozenBlocks:
        if layer not in self._blocks:
            self._blocks[layer] = FrozenBlocks(self.receivers.blocks[layer])
            with self._blocks[layer].noted():
                self._called(layer, self.base.residuals[layer])
        return self._blocks[layer]


class FrozenBlocks:
    """A layer's two blocks, and their outputs for the base."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = taps
        self._returned: dict[nn.Module, Any] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record their outputs inside this block."""
        with ExitStack() as stack:
            for tap in self.taps:
                assert tap.module is not None
                stack.callback(tap.module.register_forward_hook(self._note).remove)
            yield

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        self._returned[module] = output

    @contextmanager
    def left_out(self, lines: int, *taps: Tap) -> Iterator[None]:
        """Make the blocks of `taps` return their recorded outputs inside this block, for so many sequences."""
        with ExitStack() as stack:
            for tap in taps:
                assert tap.module is not None
                stack.enter_context(_returning(tap, self._returned[tap.module], lines))
            yield


@contextmanager
def _returning(tap: Tap, output: Any, lines: int) -> Iterator[None]:
    module: Any = tap.module
    raw = pick(output, tap.key)
    whole = dict(output) if isinstance(output, Mapping) else output  # `swap` changes mappings in place
    several = swap(whole, tap.key, _repeat(raw, lines))
    before = vars(module).get("forward")
    module.forward = lambda *args, **kwargs: several
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def _repeat(raw: Tensor, lines: int) -> Tensor:
    """Return a tensor of one sequence repeated; a layer may write into its input."""
    return raw.repeat(lines, *(1,) * (raw.ndim - 1))


def _counts_lines(tap: Tap) -> bool:
    """Return whether the first axis of a tap's raw tensor counts sequences."""
    return tap.boundary is not None or (isinstance(tap.layout, PositionLayout) and tap.layout.batch == 0)
