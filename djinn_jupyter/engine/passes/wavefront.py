"""A wavefront: one pass over all layers that sequences join; and the rows that one call of a layer may have, learned
from how long calls take, or from earlier work."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from time import perf_counter, thread_time
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.packing import AfterLayer, Packing, Portion
from djinn_jupyter.engine.passes.sections import (
    ArgumentAxes,
    Entries,
    Inside,
    LayerCalls,
    NotPacked,
    SharedEntry,
    each_of,
    joined,
    of_base,
    tensors_by_path,
)
from djinn_jupyter.engine.passes.shared_cache import BaseRows, KeyValues, SharedCache
from djinn_jupyter.engine.system.device import require_alive, to_home

MOST_SECONDS: Final = 0.02  # of one call of a layer, or one section of it, so that others' requests wait no longer
TOO_SLOW: Final = 5 * MOST_SECONDS
SLOW_CALLS: Final = 3  # in sequence: rows that sufficed elsewhere are too many here
FIRST_ROWS: Final = 256  # of the first call, before any was measured


class CallPlan:
    """The most rows of each call, in turn, as pairs (rows, calls): those `given`, then the learned ones. With the same
    plan the same rows share each call, and so have the same bits."""

    def __init__(self, given: Sequence[tuple[int, int]] = ()) -> None:
        self._given = [[rows, calls] for rows, calls in reversed(given)]
        self._made: list[list[int]] = []
        self._slow = 0  # calls up to the present one

    @property
    def made(self) -> tuple[tuple[int, int], ...]:
        """The most rows of the calls up to now."""
        return tuple((rows, calls) for rows, calls in self._made)

    def next(self, learned: int) -> int:
        """Return the most rows of the next call."""
        rows = learned
        if self._given:
            rows = self._given[-1][0]
            self._given[-1][1] -= 1
            if self._given[-1][1] < 1:
                self._given.pop()
        if self._made and self._made[-1][0] == rows:
            self._made[-1][1] += 1
        else:
            self._made.append([rows, 1])
        return rows

    def note(self, seconds: float) -> None:
        """Count a call. Several slow ones end the given part; a single one may be the garbage collector's."""
        self._slow = self._slow + 1 if seconds > TOO_SLOW else 0
        if self._slow == SLOW_CALLS:
            self._given.clear()


@dataclass(slots=True)
class CallSize:
    """The number of rows of one call of a layer, learned from the calls made, or from the longest section of each,
    where the `plan` has none."""

    rows: int = FIRST_ROWS
    plan: CallPlan = field(default_factory=CallPlan)

    def of_next(self) -> int:
        """Return the most rows of the next call."""
        return self.plan.next(self.rows)

    def note(self, rows: int, seconds: float) -> None:
        """Count a call. Grows at most twofold at a time, because the first calls of a process are slow or lucky;
        shrinks after a call that took too long alone, because a small one says nothing about a large one."""
        fitting = max(1, int(rows * MOST_SECONDS / max(seconds, 1e-6)))
        self.rows = fitting if seconds > MOST_SECONDS else max(self.rows, min(fitting, 2 * self.rows))
        self.plan.note(seconds)


# A wavefront: one pass over all layers, from the lowest to the highest, which lines join when their layer comes. A line
# equals its base below some layer and before some position, so only its later rows run: at layer l those of every line
# that joined at or below l. Lines with rows from the same position on run a layer together, through the model's own
# layer module, and lines of all starts where they can be packed. In the last layer all rows run up to the cache's
# update, and only the last row beyond it. Shapes: B lines of a group, S positions of the base, n rows of a line (those
# from its start to S), D features.

MOST_JOINED: Final = 256 * 2**20  # bytes of keys and values that attention reads in one call
MOST_KEPT: Final = 64 * 2**20  # bytes of modules' outputs in a call that is left between two of them
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoiningLine:
    """A sequence (line) that equals the base before position `start` and below `boundary`, where its rows are rows_nD;
    or those of the base, and the line has another value `inside` the layer above. `later` are changes of its rows at
    boundaries above, called with its last rows there. `keys` are keys and values of its rows in layers of the cache
    below, where they differ from the base's."""

    number: int
    boundary: int
    start: int
    rows_nD: Tensor
    inside: Inside | None = None
    later: tuple[tuple[int, Change], ...] = ()
    keys: Mapping[int, KeyValues] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        kept = sum(rows.nbytes for pair in self.keys.values() for rows in pair)
        return self.rows_nD.nbytes + kept + (0 if self.inside is None else self.inside.value.nbytes)


@dataclass(slots=True)
class _Group:
    """The lines that run together: their numbers, their rows before the next layer, values `inside` it, by line, and
    the keys and values of their rows that layers below have passed on."""

    numbers: list[int] = field(default_factory=list)
    rows_BnD: Tensor | None = None
    inside: dict[int, Inside] = field(default_factory=dict)
    shared: Entries = field(default_factory=dict)

    def join(self, lines: Sequence[JoiningLine], shared: Entries) -> None:
        """Take lines, which have such keys and values."""
        self.shared = joined(self.shared, shared) if self.numbers else shared
        fresh = torch.stack([line.rows_nD for line in lines])
        self.inside = {at: one for at, line in enumerate(lines, len(self.numbers)) if (one := line.inside) is not None}
        self.numbers += [line.number for line in lines]
        if self.rows_BnD is not None:
            before = to_home(self.rows_BnD, fresh.device)
            fresh = torch.cat([before, fresh[:, fresh.shape[1] - before.shape[1] :]])
        self.rows_BnD = fresh

    def leave(self, parts: Sequence[AfterLayer], needed: Iterable[SharedEntry]) -> None:
        """Take the results of its lines after a layer, and the keys and values that are `needed` above."""
        rows = [part.rows_BnD for part in parts]
        self.rows_BnD, self.inside = torch.cat(rows) if len(rows) > 1 else rows[0], {}
        made = reduce(joined, (part.made for part in parts))
        self.shared = {entry: rows for entry, rows in {**self.shared, **made}.items() if entry in needed}

    @torch.inference_mode()
    def change(self, number: int, change: Change) -> None:
        """Change the rows of one line, by its number."""
        assert self.rows_BnD is not None
        at = self.numbers.index(number)
        self.rows_BnD[at] = change(self.rows_BnD[at])


class Wavefront:
    """Runs lines over one base line of `tokens`. `residuals` are its hidden states before each layer and after the
    last, [1, S, D], and `base` its keys and values."""

    def __init__(
        self,
        forward: Forward,
        tokens: tuple[int, ...],
        residuals: Sequence[Tensor],
        base: BaseRows,
        axes: ArgumentAxes,
        packing: Packing | None = None,
        step_by_step: bool = False,
        plan: CallPlan | None = None,
    ) -> None:
        self.forward, self.tokens, self.residuals, self._axes = forward, tokens, residuals, axes
        self.packing = packing
        self.base, self.size = base, CallSize(plan=plan or CallPlan())
        self.layers_run = 0  # calls of a layer
        self.rows_run = 0
        self._calls: dict[int, LayerCalls] = {}
        self._step_by_step = step_by_step

    @torch.inference_mode()
    def learn(self, packing: Packing, start: int) -> None:
        """Let `packing` learn the layers' arguments for rows from `start` on. Raises NotPacked."""
        with self.forward.weights.passing():
            packing.learn(self._calls_from(start), self._calls_from(len(self.tokens) - 1), self.residuals[0][:, start:])

    @torch.inference_mode()
    def behind(self, layer: int, lines: Sequence[JoiningLine]) -> list[Tensor]:
        """Return all rows of lines that join at `layer` with values inside it, after it, from one call. NotPacked."""
        if self.packing is None:
            raise NotPacked("lines of several starts do not share a call")
        group = _Group()
        group.join(lines, self._handed_to(layer, lines))
        portion = self._portion(lines[0].start, group)
        with self.forward.shared(portion.rows):
            return list(self.packing.call(layer, [portion])[0].rows_BnD)

    def embedded(self, tokens: tuple[int, ...], start: int) -> Tensor | None:
        """Return the rows [n, D] before the first layer of other `tokens`, which are the base's up to `start`; None
        where layers get other values that depend on tokens."""
        calls = self._calls_from(start)
        given = self.forward.layer_arguments(tokens, start, calls.cache, lines=1)
        for form, own, other in zip(self.forward.anatomy.forms, calls.arguments, given, strict=True):
            own_tensors, tensors = (
                dict(tensors_by_path(form.put(*one, form.take(*other)), ())) for one in (own, other)
            )
            if own_tensors.keys() != tensors.keys() or not all(
                map(torch.equal, own_tensors.values(), tensors.values())
            ):
                return None
        return self.forward.anatomy.by_line(self.forward.anatomy.forms[0].take(*given[0]))[0]

    def run(self, lines: Sequence[JoiningLine]) -> Iterator[dict[int, Tensor] | None]:
        """Yield None between two calls of a layer, and at the end each line's last row after all layers, by number."""
        groups: dict[int, _Group] = {}
        changes = _changes_at(lines)
        for boundary in range(min(line.boundary for line in lines), self.forward.layers + 1):
            for start, joining in _by_start(line for line in lines if line.boundary == boundary).items():
                groups.setdefault(start, _Group()).join(joining, self._handed_to(boundary, joining))
            for line, change in changes.get(boundary, ()):
                groups[line.start].change(line.number, change)
            if boundary < self.forward.layers:
                yield from self._advance(boundary, groups)
        self._calls.clear()  # masks of n by S for each start: a long line's would fill the device
        yield {
            number: to_home(row[-1], self.forward.device)
            for group in groups.values()
            if group.rows_BnD is not None
            for number, row in zip(group.numbers, group.rows_BnD, strict=True)
        }

    def joined_bytes(self, lines: int) -> int:
        """Return the bytes of the largest join of keys and values while so many lines run."""
        return min(lines, self._most_joined()) * self._line_bytes()

    def last_bytes(self, rows: int) -> int:
        """Return the bytes of the keys and values of so many rows, which the last layer keeps."""
        return rows * self._line_bytes() // len(self.tokens)

    def shared_bytes(self, rows: int) -> int:
        """Return the bytes of the keys and values that so many rows keep for layers above, twice where lines join."""
        kept = {number for boundary in range(self.forward.layers) for number in self._needed_at(boundary).values()}
        line = sum(rows.nbytes for number in kept for rows in self.base.of_layer[number])
        return 2 * rows * line // len(self.tokens)

    def section_bytes(self, rows: int) -> int:
        """Return the most bytes that a call keeps between its sections, for so many rows."""
        return self._kept_of_row * min(rows, max(self._most_rows(), len(self.tokens)))

    def _most_rows(self) -> int:
        return MOST_KEPT // max(self._kept_of_row, 1)

    @property
    def _kept_of_row(self) -> int:
        return 0 if self.packing is None else self.packing.kept_of_row

    def _line_bytes(self) -> int:
        return max(keys.nbytes + values.nbytes for keys, values in self.base.of_layer.values())

    def _most_joined(self) -> int:
        return max(1, MOST_JOINED // self._line_bytes())

    def count(self) -> int:
        """Return the calls of layers since the last call of this function."""
        made, self.layers_run = self.layers_run, 0
        return made

    def _advance(self, layer: int, groups: Mapping[int, _Group]) -> Iterator[None]:
        """Run a layer for all groups, some lines at a time: those of one start, or of several where they are packed."""
        done: dict[int, list[AfterLayer]] = {start: [] for start in groups}
        waiting = [self._portion(start, group) for start, group in groups.items()]
        self.rows_run += sum(one.rows for one in waiting)
        if self._ends_early(layer) and any(one.length > 1 for one in waiting):
            waiting = yield from self._last_rows(layer, waiting)
        while waiting:
            some, waiting = self._next(waiting)
            after = yield from self._called(layer, some)
            for one, part in zip(some, after, strict=True):
                done[one.start].append(part)
            yield
        needed = self._needed_at(layer + 1)
        for start, group in groups.items():
            group.leave(done[start], needed)

    def _ends_early(self, layer: int) -> bool:
        """Return whether a layer computes only the last rows after its cache's update: the last one, with at most one
        update."""
        return layer == self.forward.layers - 1 and len(self.forward.anatomy.cache_layers_of(layer)) < 2

    def _portion(self, start: int, group: _Group) -> Portion:
        assert group.rows_BnD is not None
        return Portion(
            calls=self._calls_from(start),
            start=start,
            rows_BnD=group.rows_BnD,
            inside=group.inside,
            shared=group.shared,
        )

    def _needed_at(self, boundary: int) -> dict[SharedEntry, int]:
        return {} if self.packing is None else self.packing.shared.handed_to(boundary)

    def handed_on(self, first: int, boundary: int) -> set[int]:
        """Return the layers of the cache whose keys and values layers from `first` on pass on, beyond `boundary`."""
        below = self._needed_at(max(first, 0))
        return {number for entry, number in self._needed_at(boundary).items() if below.get(entry) != number}

    def _handed_to(self, boundary: int, lines: Sequence[JoiningLine]) -> Entries:
        """Return keys and values passed on by layers below `boundary` to lines of one start: their own, or the
        base's."""
        start, found = lines[0].start, Entries()
        for entry, number in self._needed_at(boundary).items():
            base = of_base(self.base.of_layer[number], start)
            keys, values = zip(*(line.keys.get(number, base) for line in lines), strict=True)
            found[entry] = torch.cat(keys), torch.cat(values)
        return found

    def _next(self, waiting: Sequence[Portion]) -> tuple[list[Portion], list[Portion]]:
        """Return the lines of the next call, by start, and those that wait on."""
        some: list[Portion] = []
        rows, lines = self._even_rows(waiting if self.packing else waiting[:1]), self._most_joined()
        for at, one in enumerate(waiting):
            count = min(max(rows // one.length, 0 if some else 1), lines, one.lines)
            if count:
                some.append(one.part(0, count))
            if count < one.lines:
                return some, [one.part(count, one.lines), *waiting[at + 1 :]]
            if self.packing is None:
                return some, list(waiting[at + 1 :])
            rows, lines = rows - count * one.length, lines - count
        return some, []

    def _even_rows(self, waiting: Sequence[Portion]) -> int:
        """Return the number of rows of the next call where all remaining calls have equally many: a small last one
        would cost more a row."""
        there, most = sum(one.rows for one in waiting), max(1, min(self.size.of_next(), self._most_rows()))
        return math.ceil(there / math.ceil(there / most))

    @torch.inference_mode()
    def _called(self, layer: int, portions: Sequence[Portion]) -> Generator[None, None, list[AfterLayer]]:
        self.layers_run += 1
        if self.packing is None or not self.packing.in_sections:
            return self._timed(layer, portions, lambda: self._through(layer, portions))
        return (yield from self._in_sections(self.packing, layer, portions))

    def _in_sections(
        self, packing: Packing, layer: int, portions: Sequence[Portion]
    ) -> Generator[None, None, list[AfterLayer]]:
        longest, sections = 0.0, packing.sections(layer, portions, step_by_step=self._step_by_step)
        rows = sum(one.rows for one in portions)
        while True:
            begun = thread_time()
            with self.forward.shared(rows):
                found = next(sections)
            longest = max(longest, thread_time() - begun)
            if found is not None:
                self.size.note(rows, longest)
                return found
            yield

    def _timed(self, layer: int, portions: Sequence[Portion], call: Callable[[], list[Any]]) -> list[Any]:
        device = self.forward.home_at(layer)
        clock = perf_counter if device.type != "cpu" else thread_time  # others' work is not part of this call
        begun, rows = clock(), sum(one.rows for one in portions)
        with self.forward.shared(rows):
            found = call()
        require_alive(device)  # a call on a GPU returns before it is done
        self.size.note(rows, clock() - begun)
        return found

    def _through(self, layer: int, portions: Sequence[Portion]) -> list[AfterLayer]:
        if self.packing is not None:
            return self.packing.call(layer, portions)
        if any(one.inside for one in portions):
            raise NotPacked("lines have values inside a layer that runs a start at a time")
        found = []
        for one in portions:
            view = one.calls.cache.layer(self._cache_layer(layer))
            with nullcontext() if one.before is None else view.following(one.before, one.start):
                found.append(AfterLayer(rows_BnD=one.calls.call(layer, one.rows_BnD)))
        return found

    def _last_rows(self, layer: int, waiting: Sequence[Portion]) -> Generator[None, None, list[Portion]]:
        """Return the last row of each line before the last layer, and the keys and values of its others there."""
        tail, last = self._calls_from(len(self.tokens) - 1), list[Portion]()
        read = None if self.packing is None else self.packing.shared.read(layer)
        if read is not None:
            return [_last_row(one, tail, one.shared[read], {read: one.shared[read]}) for one in waiting]
        while waiting:
            some, waiting = self._next(waiting)
            caught = self._timed(layer, some, partial(self._keys_and_values, layer, some))
            last += [_last_row(one, tail, rows) for one, rows in zip(some, caught, strict=True)]
            yield
        return last

    @torch.inference_mode()
    def _keys_and_values(self, layer: int, portions: Sequence[Portion]) -> list[KeyValues]:
        if self.packing is not None:
            return self.packing.caught(layer, portions)
        return [self._caught(one.calls, layer, one.rows_BnD) for one in portions]

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


def _last_row(one: Portion, tail: LayerCalls, attended: KeyValues, shared: Entries | None = None) -> Portion:
    """Return the last row of each line, with the keys and values that it attends to; for a call that has queries too,
    those of the others are cloned."""
    keys, values = (rows[:, :, :-1].clone() for rows in attended)
    last = each_of(shared or {}, lambda rows: rows[:, :, -1:])
    return replace(one, calls=tail, rows_BnD=one.rows_BnD[:, -1:], before=(keys, values), shared=last)


def _by_start(lines: Iterator[JoiningLine]) -> dict[int, list[JoiningLine]]:
    found: dict[int, list[JoiningLine]] = {}
    for line in lines:
        found.setdefault(line.start, []).append(line)
    return found


def _changes_at(lines: Sequence[JoiningLine]) -> dict[int, list[tuple[JoiningLine, Change]]]:
    found: dict[int, list[tuple[JoiningLine, Change]]] = {}
    for line in lines:
        for boundary, change in line.later:
            found.setdefault(boundary, []).append((line, change))
    return found
