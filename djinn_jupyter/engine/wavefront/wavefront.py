"""A wavefront: one pass over all layers, from the lowest to the highest, which lines join when their layer comes.

A line equals its base below some layer and before some position, so only its rows from there run: at layer l those of
every line that joined at or below l. Lines with rows from the same position on run a layer together, through the
model's own layer module, and lines of all starts where they can be packed. In the last layer all rows run up to the
cache's update, and the last row alone beyond it.

Shapes: B lines of a group, S positions of the base line, n rows of a line (those from its start to S), D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.system.device import require_alive
from djinn_jupyter.engine.wavefront.layer_calls import ArgumentAxes, LayerCalls
from djinn_jupyter.engine.wavefront.packing import Packing, Portion
from djinn_jupyter.engine.wavefront.shared_cache import BaseRows, KeyValues, SharedCache

MOST_SECONDS: Final = 0.02  # of one call of a layer, so that others' requests wait no longer
MOST_JOINED: Final = 256 * 2**20  # bytes of keys and values that attention reads in one call
FIRST_ROWS: Final = 256  # of the first call, before any was measured
Started = tuple[int, Tensor]  # a start, and rows_BnD of lines that begin there


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """A line that equals the base before position `start` and below `boundary`, where its rows are rows_nD."""

    number: int
    boundary: int
    start: int
    rows_nD: Tensor

    @property
    def nbytes(self) -> int:
        return self.rows_nD.nbytes


@dataclass(slots=True)
class _Group:
    """The lines that run together: their numbers, and their rows before the next layer."""

    numbers: list[int] = field(default_factory=list)
    rows_BnD: Tensor | None = None

    def join(self, lines: Sequence[Line]) -> None:
        fresh = torch.stack([line.rows_nD for line in lines])
        self.numbers += [line.number for line in lines]
        if self.rows_BnD is not None:
            fresh = torch.cat([self.rows_BnD, fresh[:, fresh.shape[1] - self.rows_BnD.shape[1] :]])
        self.rows_BnD = fresh


@dataclass(slots=True)
class CallSize:
    """How many rows one call of a layer may have, learned from the calls made."""

    rows: int = FIRST_ROWS

    def note(self, rows: int, seconds: float) -> None:
        """Count a call. Grows at most twofold at a time, for the first calls of a process are slow or lucky; shrinks
        after a call that took too long alone, for a small one says nothing of a large one."""
        fitting = max(1, int(rows * MOST_SECONDS / max(seconds, 1e-6)))
        self.rows = fitting if seconds > MOST_SECONDS else max(self.rows, min(fitting, 2 * self.rows))


class Wavefront:
    """Runs lines over one base line of `tokens`. `residuals` are its hidden states before each layer and after the
    last, [1, S, D]."""

    def __init__(
        self,
        forward: Forward,
        tokens: tuple[int, ...],
        residuals: Sequence[Tensor],
        axes: ArgumentAxes,
        packing: Packing | None = None,
    ) -> None:
        self.forward, self.tokens, self.residuals, self._axes = forward, tokens, residuals, axes
        self.packing = packing
        self.base, self.size = BaseRows({}), CallSize()
        self.layers_run = 0  # calls of a layer
        self.rows_run = 0
        self._calls: dict[int, LayerCalls] = {}

    def prepare(self) -> Iterator[None]:
        """Compute the base's keys and values, a layer at a time."""
        calls = self._calls_from(0)
        for layer in range(self.forward.layers):
            with self.forward.weights.passing():
                keys, values = self._caught(calls, layer, self.residuals[layer])
            self.base.of_layer[self._cache_layer(layer)] = (keys.contiguous(), values.contiguous())
            yield

    @torch.inference_mode()
    def learn(self, packing: Packing, start: int) -> None:
        """Have `packing` learn the layers' arguments for rows from `start` on. Raises NotPacked."""
        with self.forward.weights.passing():
            packing.learn(self._calls_from(start), self._calls_from(len(self.tokens) - 1), self.residuals[0][:, start:])

    def run(self, lines: Sequence[Line]) -> Iterator[dict[int, Tensor] | None]:
        """Yield None between two calls of a layer, and at the end each line's last row behind the last layer, by its
        number."""
        groups: dict[int, _Group] = {}
        for boundary in range(min(line.boundary for line in lines), self.forward.layers + 1):
            for start, joining in _by_start(line for line in lines if line.boundary == boundary).items():
                groups.setdefault(start, _Group()).join(joining)
            if boundary < self.forward.layers:
                yield from self._advance(boundary, groups)
        self._calls.clear()  # masks of n by S for each start: a long line's would fill the device
        yield {
            number: row[-1]
            for group in groups.values()
            if group.rows_BnD is not None
            for number, row in zip(group.numbers, group.rows_BnD, strict=True)
        }

    def joined_bytes(self, lines: int) -> int:
        """Return the bytes of the largest join of keys and values while so many lines run."""
        return min(lines, self._most_joined()) * self._line_bytes()

    def _line_bytes(self) -> int:
        return max(keys.nbytes + values.nbytes for keys, values in self.base.of_layer.values())

    def _most_joined(self) -> int:
        return max(1, MOST_JOINED // self._line_bytes())

    def count(self) -> int:
        """Return the calls of layers since it was last asked."""
        made, self.layers_run = self.layers_run, 0
        return made

    def _advance(self, layer: int, groups: Mapping[int, _Group]) -> Iterator[None]:
        """Run a layer for all groups, some lines at a time: those of one start, or of several where they are packed."""
        done: dict[int, list[Tensor]] = {start: [] for start in groups}
        waiting = [(start, group.rows_BnD) for start, group in groups.items() if group.rows_BnD is not None]
        while waiting:
            some, waiting = self._next(waiting)
            rows = sum(one.shape[0] * one.shape[1] for _, one in some)
            clock = perf_counter if some[0][1].device.type != "cpu" else thread_time  # others' work is not this call's
            begun = clock()
            for (start, _), after in zip(some, self._called(layer, some), strict=True):
                done[start].append(after)
            require_alive(some[0][1].device)  # a call on a GPU returns before it is done
            self.size.note(rows, clock() - begun)
            yield
        for start, group in groups.items():
            group.rows_BnD = torch.cat(done[start]) if len(done[start]) > 1 else done[start][0]

    def _next(self, waiting: Sequence[Started]) -> tuple[list[Started], list[Started]]:
        """Return the lines of the next call, by start, and those that wait on."""
        some: list[Started] = []
        rows, lines = self.size.rows, self._most_joined()
        for at, (start, rows_BnD) in enumerate(waiting):
            count = min(max(rows // rows_BnD.shape[1], 0 if some else 1), lines, rows_BnD.shape[0])
            if count:
                some.append((start, rows_BnD[:count]))
            if count < rows_BnD.shape[0]:
                return some, [(start, rows_BnD[count:]), *waiting[at + 1 :]]
            if self.packing is None:
                return some, list(waiting[at + 1 :])
            rows, lines = rows - count * rows_BnD.shape[1], lines - count
        return some, []

    @torch.inference_mode()
    def _called(self, layer: int, some: Sequence[Started]) -> list[Tensor]:
        self.layers_run += 1
        self.rows_run += sum(rows_BnD.shape[0] * rows_BnD.shape[1] for _, rows_BnD in some)
        with self.forward.weights.passing():
            if layer == self.forward.layers - 1:
                return self._last_rows(layer, some)
            return self._through(layer, [Portion(calls=self._calls_from(at), rows_BnD=rows) for at, rows in some])

    def _through(self, layer: int, portions: Sequence[Portion]) -> list[Tensor]:
        if self.packing is not None:
            return self.packing.call(layer, portions)
        found = []
        for one in portions:
            view = one.calls.cache.layer(self._cache_layer(layer))
            with nullcontext() if one.before is None else view.following(one.before, one.until):
                found.append(one.calls.call(layer, one.rows_BnD))
        return found

    def _last_rows(self, layer: int, some: Sequence[Started]) -> list[Tensor]:
        """Return the last row of each line behind the last layer: of the others only keys and values are computed."""
        portions = [Portion(calls=self._calls_from(at), rows_BnD=rows) for at, rows in some]
        if all(one.length == 1 for one in portions):
            return self._through(layer, portions)
        if self.packing is not None:
            caught = self.packing.caught(layer, portions)
        else:
            caught = [self._caught(one.calls, layer, one.rows_BnD) for one in portions]
        tail = self._calls_from(len(self.tokens) - 1)
        return self._through(
            layer,
            [
                Portion(
                    calls=tail,
                    rows_BnD=one.rows_BnD[:, -1:],
                    before=(keys[:, :, :-1], values[:, :, :-1]),
                    until=one.calls.cache.start,
                )
                for one, (keys, values) in zip(portions, caught, strict=True)
            ],
        )

    @torch.inference_mode()
    def _caught(self, calls: LayerCalls, layer: int, rows_BnD: Tensor) -> KeyValues:
        """Run a layer up to its cache's update. Return the keys and values that it gave."""
        view = calls.cache.layer(self._cache_layer(layer))
        with suppress(Leave), view.leaving():
            calls.call(layer, rows_BnD)
        return view.take()

    def _cache_layer(self, layer: int) -> int:
        return self.forward.anatomy.cache_layers_of(layer)[0]

    def _calls_from(self, start: int) -> LayerCalls:
        if start not in self._calls:
            cache = SharedCache(self.forward.model.config, self.base, start)
            self._calls[start] = LayerCalls.of(self.forward, self.tokens, cache, self._axes)
        return self._calls[start]


def _by_start(lines: Iterator[Line]) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(line.start, []).append(line)
    return found
