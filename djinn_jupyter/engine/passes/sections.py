"""A layer's call in sections: it is left between two of its modules, so that others are answered, and entered again.
And the keys and values that a layer hands on, for layers above to read in place of their own.

Entered again, the modules that have run give what they gave before, and only what lies between them, such as sums, is
computed twice. Between sections nothing of the model is changed. Knows no family: what a layer is made of are its
modules, and whether they can be stopped between is tried on each layer.

Keys are handed on in a mapping among the layers' arguments. The entries that a layer makes and the one that it reads
are learned from calls of the layers, by identity: what attention gets is what lies in the mapping."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.hooks.gates import Arguments, Leave
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.shared_cache import REFUSALS, BaseRows, KeyValues, SharedCache, equal_but_for_rounding
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.engine.system.device import out_of_memory, to_home

SECTION_WORK: Final = 0.9e9  # multiplications, 20 ms of a core by MKL: 380 rows of GPT-2, 7 % faster each than with 128
DEVICE_WORK: Final = 1e12
MOST_TOKENS: Final = 8192
MOST_OF_A_LAYER: Final = 0.5  # a module with more of its weights is parted into its own
LITTLE_OF_A_LAYER: Final = 0.01  # a module with less, as a norm, takes no time
TRIED: Final = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10))  # tokens of any vocabulary
Caught = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SectionStep:
    """A module of a layer that runs as a whole, and its weights; 0 where they are few."""

    module: Any
    weights: int


@dataclass(slots=True)
class SectionedCall:
    """One call of a layer. `outputs` are those of the steps that have run, in order."""

    steps: Sequence[SectionStep]
    most: float  # weights of a section
    outputs: list[Any] = field(default_factory=list)
    _at: int = 0
    _run: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the outputs so far."""
        return sum(tensor.nbytes for tensor in tensors_within(self.outputs))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the steps return their earlier outputs, and leave the call when a section is full, inside this block."""
        self._at = self._run = 0
        with ExitStack() as put_back:
            for step in self.steps:
                put_back.callback(_restore, step.module, vars(step.module).get("forward"))
                vars(step.module)["forward"] = partial(self._stepped, step.module.forward, step.weights)
            yield

    def _stepped(self, run: Callable[..., Any], weights: int, *args: Any, **kwargs: Any) -> Any:
        if self._at == len(self.outputs):
            if self._run and weights and self._run + weights > self.most:
                raise Leave
            self.outputs.append(run(*args, **kwargs))
            self._run += weights
        self._at += 1
        return self.outputs[self._at - 1]


class Sections:
    """Calls the layers of one model in sections, on a CPU and where `prove` has found that this changes nothing. There
    it learns the bytes that a call keeps for a row."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self._work = SECTION_WORK if forward.device.type == "cpu" else DEVICE_WORK
        self._steps = [tuple(steps_of(layer)) for layer in forward.anatomy.layers]
        self._cut: bool | None = None
        self._kept_of_row = 0

    def prove(self) -> Iterator[None]:
        """Run every layer whole and a step at a time, until that has been done once. Yields after a layer."""
        if self._cut is None:
            same = self.forward.device.type == "cpu" and not self.forward.weights.streamed
            if same:
                same = yield from self._runs_in_steps()
            self._cut = same  # where the request has ended before, the next one proves it

    def tokens(self) -> int:
        """Return the most tokens of a batch for which others wait no longer than a section."""
        steps = [step.weights for steps in self._steps for step in steps] if self._cut else []
        longest = max(steps, default=0) or max(map(_weights, self.forward.anatomy.layers))
        return max(1, min(MOST_TOKENS, int(self._work / max(longest, 1))))

    def kept_bytes(self, rows: int) -> int:
        """Return the most bytes that a layer's call keeps between its sections, for so many rows."""
        return rows * self._kept_of_row if self._cut else 0

    def run(
        self, layer: int, arguments: Arguments, hidden_BTD: Tensor, caught: Caught = nullcontext
    ) -> Generator[None, None, Tensor]:
        """Return the hidden states after a layer. Yields between two sections; `caught` is entered with each."""
        rows = hidden_BTD.shape[0] * hidden_BTD.shape[1]
        call = SectionedCall(self._steps[layer] if self._cut else (), self._work / rows)
        return self._called(layer, arguments, hidden_BTD, call, caught)

    @torch.inference_mode()
    def _called(
        self, layer: int, arguments: Arguments, hidden_BTD: Tensor, call: SectionedCall, caught: Caught
    ) -> Generator[None, None, Tensor]:
        anatomy = self.forward.anatomy
        form = anatomy.forms[layer]
        args, kwargs = form.put(*arguments, hidden_BTD)
        while True:
            try:
                with self.forward.shared(hidden_BTD.shape[0] * hidden_BTD.shape[1]), caught(), call.entered():
                    after: Tensor = form.unwrap(anatomy.layers[layer](*args, **kwargs))
                    return after
            except Leave:
                pass
            yield

    def _runs_in_steps(self) -> Generator[None, None, bool]:
        """Return whether every layer gives the same result in steps as in one call. A model that does not accept our
        cache, or several sequences, does not."""
        try:
            return (yield from self._same_in_steps())
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return False

    def _same_in_steps(self) -> Generator[None, None, bool]:
        """Compare every layer's call as a whole with one in which each step is a section."""
        cache = SharedCache(self.forward.model.config, BaseRows({}), 0)
        arguments = self.forward.batch_arguments(TRIED, cache)
        hidden_BTD = self.forward.anatomy.forms[0].take(*arguments[0])
        for layer, given in enumerate(arguments):
            calls = (SectionedCall((), 0), SectionedCall(self._steps[layer], 0))
            whole, stepped = (_ended(self._called(layer, given, hidden_BTD, one, nullcontext)) for one in calls)
            if not equal_but_for_rounding(stepped.flatten(0, 1), whole.flatten(0, 1), self.forward.model.dtype):
                return False
            self._kept_of_row = max(self._kept_of_row, math.ceil(calls[1].nbytes / stepped[..., 0].numel()))
            hidden_BTD = whole
            yield
        return True


def _ended(call: Generator[None, None, Tensor]) -> Tensor:
    while True:
        try:
            next(call)
        except StopIteration as done:
            after: Tensor = done.value
            return after


def steps_of(layer: nn.Module) -> Iterator[SectionStep]:
    """Return the modules of a layer, none inside another; one with much of its weights is parted into its own."""
    every = _weights(layer)
    for module in _parted(layer, MOST_OF_A_LAYER * every):
        weights = _weights(module)
        yield SectionStep(module, weights if weights >= LITTLE_OF_A_LAYER * every else 0)


def _parted(module: nn.Module, most: float) -> Iterator[nn.Module]:
    for child in module.children():
        inner = sum(_weights(one) for one in child.children())
        listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if listed or (_weights(child) > most and inner > most):
            yield from _parted(child, most)
        else:
            yield child


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _restore(module: Any, forward: Any) -> None:
    """Restore a module's own forward, or its class's."""
    if forward is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = forward


# Values of sequences at a tap inside the layer at which they join, put in place while that layer runs packed rows.
# Packed rows have the layout of one sequence's, so a tap's own layout reads and writes them. The caller has to test
# whether a tap's module gets the rows as they were packed.


class NotPacked(RuntimeError):
    """A layer does something with packed rows that this folder does not know."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inside:
    """The values of a sequence at `tap`, one for each of its rows."""

    tap: Tap
    value: Tensor

    def last(self, rows: int) -> Inside:
        return Inside(tap=self.tap, value=self.value[-rows:])


def is_served(tap: Tap) -> bool:
    """Return whether packed rows may have values of their own at a tap: at the input or output of a module."""
    return tap.kind in ("module_input", "module_output") and isinstance(tap.layout, PositionLayout)


def in_place(values: Iterable[tuple[int, Inside]], rows: int) -> AbstractContextManager[None]:
    """Put values in place inside this block, from their first rows on, where a call of `rows` rows reaches their
    taps."""
    puts: defaultdict[Tap, list[tuple[int, Tensor]]] = defaultdict(list)
    for first, one in values:
        puts[one.tap].append((first, one.value))

    def put(tap: Tap, raw: Tensor) -> Tensor:
        value = tap.read(raw).clone()
        if value.shape[0] != rows:
            raise NotPacked(f"{tap.site} has {value.shape[0]} rows of {rows}")
        for first, own in puts[tap]:
            value[first : first + own.shape[0]] = own
        return tap.write(raw, value)

    return catch(puts, put) if puts else nullcontext()


# The arguments of every layer for sequences whose rows are [start, end), as the model's own forward makes them. Masks,
# rotary tables, biases of distance and inputs by layer come from the model, once a group of sequences and for one
# sequence; for several, the axis that counts sequences is found by requesting two, and repeated.

Path = tuple[int | str, ...]
Axes = Mapping[Path, int]
Structure = tuple[tuple[Path, int], ...]
Tensors = dict[Path, Tensor]


class ArgumentAxes:
    """The axes that count sequences, by the structure of the arguments; learned from the model once for each."""

    def __init__(self) -> None:
        self._known: dict[Structure, Axes] = {}

    def of(self, one: Sequence[Tensors], two: Callable[[], list[Arguments]]) -> Axes:
        """Return the axes of each layer's tensors `one`, by the layer and their paths; `two` returns the arguments for
        two sequences, where they are unknown."""
        by_path = {(layer, *path): tensor for layer, tensors in enumerate(one) for path, tensor in tensors.items()}
        structure = tuple((path, tensor.ndim) for path, tensor in by_path.items())
        if structure not in self._known:
            doubled = dict(tensors_by_path(two(), ()))
            self._known[structure] = {
                path: axis
                for path, tensor in by_path.items()
                if (axis := _grown(tensor, doubled.get(path, tensor))) is not None
            }
        return self._known[structure]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCalls:
    """Calls layers for sequences with `length` rows from `cache.start` on."""

    forward: Forward
    cache: SharedCache
    length: int
    arguments: list[Arguments]
    tensors: list[Tensors]  # among each layer's arguments
    axes: Axes

    @classmethod
    def of(cls, forward: Forward, tokens: tuple[int, ...], cache: SharedCache, axes: ArgumentAxes) -> LayerCalls:
        one = forward.layer_arguments(tokens, cache.start, cache, lines=1)
        tensors = [dict(tensors_by_path(given, ())) for given in one]
        found = axes.of(tensors, lambda: forward.layer_arguments(tokens, cache.start, cache, lines=2))
        return cls(
            forward=forward,
            cache=cache,
            length=len(tokens) - cache.start,
            arguments=one,
            tensors=tensors,
            axes=found,
        )

    def call(self, layer: int, hidden_BnD: Tensor) -> Tensor:
        """Return the hidden states of all sequences after `layer`."""
        anatomy = self.forward.anatomy
        form = anatomy.forms[layer]
        args, kwargs = _repeated(self.arguments[layer], (layer,), self.axes, hidden_BnD.shape[0])
        args, kwargs = form.put(args, kwargs, anatomy.of_lines(hidden_BnD))
        return anatomy.by_line(form.unwrap(anatomy.layers[layer](*args, **kwargs)))

    def tensor(self, layer: int, path: Path, lines: int) -> Tensor | None:
        """Return one of a layer's arguments for so many sequences, None where the layer gets none."""
        value = self.tensors[layer].get(path)
        repeated: Tensor | None = _repeated(value, (layer, *path), self.axes, lines)
        return repeated


def tensors_by_path(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_by_path(part, (*path, key))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from tensors_by_path(part, (*path, index))


def _grown(one: Tensor, two: Tensor) -> int | None:
    """Return the axis along which `two` is twice as long, None where none is."""
    if one.ndim != two.ndim:
        return None
    return next((axis for axis in range(one.ndim) if two.shape[axis] == 2 * one.shape[axis]), None)


def _repeated(value: Any, path: Path, axes: Axes, lines: int) -> Any:
    """Return the same arguments for `lines` sequences; sequences are the outer part of a shared axis."""
    if isinstance(value, Tensor):
        axis = axes.get(path)
        if axis is None or lines == 1:
            return value
        if value.shape[axis] == 1:
            return value.expand(*(lines if i == axis else -1 for i in range(value.ndim)))
        return value.repeat(*(lines if i == axis else 1 for i in range(value.ndim)))
    if isinstance(value, dict):
        return {key: _repeated(part, (*path, key), axes, lines) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_repeated(part, (*path, index), axes, lines) for index, part in enumerate(value))
    return value


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """An entry of the mapping that is the keyword `argument` of layers."""

    argument: str
    key: Any


Entries = dict[SharedEntry, KeyValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """The entries that a layer has `made`, and the one that it has `read`, None where it attends to keys of its own."""

    made: tuple[SharedEntry, ...] = ()
    read: SharedEntry | None = None


class SharedKeys:
    """The passing on of keys and values in a model of these layers, the lowest first."""

    def __init__(self, forward: Forward, handings: Sequence[Handing]) -> None:
        self._forward, self._handings = forward, handings

    def made(self, layer: int) -> tuple[SharedEntry, ...]:
        return self._handings[layer].made

    def read(self, layer: int) -> SharedEntry | None:
        return self._handings[layer].read

    def cache_layer(self, layer: int) -> int:
        """Return the layer of the cache with the base's rows that a layer attends to."""
        read = self.read(layer)
        return self._own(layer if read is None else self._maker(read, layer))

    def handed_to(self, boundary: int) -> dict[SharedEntry, int]:
        """Return the entries that layers below have made and others above read, with their layers of the cache."""
        read = {one for layer in range(boundary, len(self._handings)) if (one := self.read(layer)) is not None}
        below = {entry for layer in range(boundary) for entry in self.made(layer)}
        return {entry: self._own(self._maker(entry, boundary)) for entry in read & below}

    def _maker(self, entry: SharedEntry, below: int) -> int:
        return max(layer for layer in range(below) if entry in self.made(layer))

    def _own(self, layer: int) -> int:
        return self._forward.anatomy.cache_layers_of(layer)[0]


class MappingWatch:
    """Watches the mappings among a layer's `arguments` while it runs, as far as its attention."""

    def __init__(self, arguments: Arguments, names: Iterable[str]) -> None:
        self._mappings = {name: arguments[1][name] for name in names if name in arguments[1]}
        self._before = dict(self._entries())

    def seen(self, layer: int, attended: KeyValues, own: bool) -> Handing:
        """Return the entries of `layer`, whose attention gets these keys and values; `own`: it makes some. Raises
        NotPacked for any other layer."""
        entries = dict(self._entries())
        made = tuple(entry for entry, value in entries.items() if value is not self._before.get(entry))
        if not all(_holds(entries[entry], attended) for entry in made):
            raise NotPacked(f"layer {layer} hands on more than its keys and values")
        if own:
            return Handing(made=made)
        read = next((entry for entry, value in self._before.items() if _holds(value, attended)), None)
        if read is None:
            raise NotPacked(f"layer {layer} attends to keys that no layer hands on")
        return Handing(made=made, read=read)

    def _entries(self) -> Iterable[tuple[SharedEntry, Any]]:
        return ((SharedEntry(name, key), value) for name, one in self._mappings.items() for key, value in one.items())


def mapping_like(mapping: MutableMapping[Any, Any], entries: Entries) -> MutableMapping[Any, Any]:
    """Return a mapping of the same kind with these entries alone."""
    fresh = copy(mapping)
    fresh.clear()
    fresh.update({entry.key: rows for entry, rows in entries.items()})
    return fresh


def each_of(rows: Entries, change: Any) -> Entries:
    """Return the same entries with their keys and values changed."""
    return {entry: (change(keys), change(values)) for entry, (keys, values) in rows.items()}


def joined(some: Entries, others: Entries) -> Entries:
    """Return the keys and values [B, H, n, D] of some lines and of others, which have the same entries."""
    return {
        entry: (_cat(keys, others[entry][0]), _cat(values, others[entry][1])) for entry, (keys, values) in some.items()
    }


def of_base(base: KeyValues, start: int) -> KeyValues:
    """Return the base's rows [1, H, n, D] from `start` on."""
    return base[0][:, :, start:], base[1][:, :, start:]


def first_other_keys(rows: KeyValues, base: KeyValues) -> int | None:
    """Return the first position at which keys or values [1, H, S, D] differ from the base's in a bit, or None."""
    found = (torch.nonzero((own != other).any(3).any(1)[0]) for own, other in zip(rows, base, strict=True))
    return min((int(at[0]) for at in found if len(at)), default=None)


def _cat(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([to_home(one, other.device), other])


def _holds(value: Any, attended: KeyValues) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == len(attended)
        and all(one is other for one, other in zip(value, attended, strict=True))
    )
