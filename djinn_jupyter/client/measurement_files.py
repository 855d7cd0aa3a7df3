"""The contents of the files of measurements: the replies of the engine, whose arrays are tensors."""

from __future__ import annotations

import math
from typing import Final

from djinn_jupyter.client.result_files import FileKind, KeptResult, Tensors
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.looks import Effect, Inspected, LensRead, LookRecipe
from djinn_jupyter.wire.module_form import AddedModuleDescription
from djinn_jupyter.wire.replies import Attributed, HeadsRead, Scored, WatchRead


class KeptMeasurement(KeptResult, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file, whose arrays are `tensors`."""

    def tensors(self) -> Tensors:
        return {}


class KeptLosses(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of losses: the replies of the engine, each to some of the prompts."""

    replies: tuple[Scored, ...]

    def tensors(self) -> Tensors:
        return {f"losses {n}": (one.values.shape, [one.values]) for n, one in enumerate(self.replies)}

    def check(self) -> None:
        counts = [(sum(map(len, one.tokens)) - len(one.tokens),) for one in self.replies]
        if not counts or counts != [one.values.shape for one in self.replies]:
            raise ValueError("its losses are not those of its tokens")
        if any(one.values.dtype != "float32" for one in self.replies):
            raise ValueError("its losses are not float32")


class KeptSplice(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a splice: its three losses of the same prompts, and the modules whose reconstruction
    stood at the points `at`."""

    module: str
    at: str
    modules: tuple[AddedModuleDescription, ...]
    model: KeptLosses
    spliced: KeptLosses
    zeroed: KeptLosses

    def tensors(self) -> Tensors:
        named = (("model", self.model), ("spliced", self.spliced), ("zeroed", self.zeroed))
        return {f"{name} {key}": tensor for name, of in named for key, tensor in of.tensors().items()}

    def check(self) -> None:
        each = (self.model, self.spliced, self.zeroed)
        for one in each:
            one.check()
        if len({tuple(prompt for reply in one.replies for prompt in reply.tokens) for one in each}) > 1:
            raise ValueError("its losses are of different prompts")
        if not self.modules:
            raise ValueError("it names no modules")


class KeptHeads(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of head scores, or of patterns: what was read, and `of` which lines, in words."""

    read: HeadsRead
    of: str

    def tensors(self) -> Tensors:
        found = {"scores": self.read.scores}
        found |= {} if self.read.patterns is None else {"patterns": self.read.patterns}
        return {name: (array.shape, [array]) for name, array in found.items()}

    def check(self) -> None:
        scores, patterns = self.read.scores, self.read.patterns
        if scores.dtype != "float64" or scores.shape[:2] != (len(self.read.counted), len(self.read.layers)):
            raise ValueError("its scores are not those of its layers")
        if len(scores.shape) != 3 or not self.read.lines:
            raise ValueError("its scores are of no heads, or of no lines")
        if patterns is not None and (patterns.dtype != "float32" or patterns.shape[:2] != scores.shape[1:]):
            raise ValueError("its patterns are not those of its heads")


class KeptParts(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a direct attribution: its parts in the order of their table, and the reply."""

    values: Array
    reply: Attributed

    def tensors(self) -> Tensors:
        found = {"parts": self.values} | {f"neurons {one.layer}": one.values for one in self.reply.neurons}
        return {name: (array.shape, [array]) for name, array in found.items()}

    def check(self) -> None:
        neurons = [one.values for one in self.reply.neurons]
        count = len(self.reply.contributions) + sum(math.prod(one.shape) for one in neurons) + 3
        if self.values.shape != (count,) or any(one.dtype != "float64" for one in (self.values, *neurons)):
            raise ValueError("its parts are not those of its modules")
        if self.reply.made is None:
            raise ValueError("its parts have no recipe")


class KeptLens(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a lens: its numbers in the order of their table, and the reply."""

    values: Array
    reply: LensRead

    def tensors(self) -> Tensors:
        return {"values": (self.values.shape, [self.values])}

    def check(self) -> None:
        count = sum(len(row.top) + len(row.chosen) for row in self.reply.rows)
        _require_look(self.values, (count, 3), self.reply.made)


class KeptEffect(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of an effect: its numbers in the order of their table, and the reply."""

    values: Array
    reply: Effect

    def tensors(self) -> Tensors:
        return {"values": (self.values.shape, [self.values])}

    def check(self) -> None:
        told = {*self.reply.effect.shifts, *self.reply.effect.chosen}
        _require_look(self.values, (1 + len(told), 5), self.reply.made)


class KeptSnapshot(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a snapshot: the reply, which has its value."""

    reply: Inspected

    def tensors(self) -> Tensors:
        value = self.reply.snapshot.value
        return {"value": (value.shape, [value])}

    def check(self) -> None:
        read = self.reply.snapshot
        if read.value.dtype != read.dtype or read.value.shape[:1] != (len(read.positions),):
            raise ValueError("its value is not that of its positions")
        if self.reply.made is None:
            raise ValueError("it has no recipe")


class KeptWatched(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of what a watch recorded: the reply, which has the value of each pass."""

    reply: WatchRead

    def tensors(self) -> Tensors:
        return {f"pass {n}": (value.shape, [value]) for n, value in enumerate(self.reply.values)}

    def check(self) -> None:
        read = self.reply
        if [value.shape[:1] for value in read.values] != [(len(at),) for at in read.positions]:
            raise ValueError("its values are not those of its positions")
        if not read.values or len(read.runs) != len(read.values) or not all(read.positions):
            raise ValueError("its passes are not those of its runs")
        if len({value.dtype for value in read.values}) > 1:
            raise ValueError("its values are not of one dtype")
        if read.made is None or not set(read.runs) <= {line.run for line in read.made.lines}:
            raise ValueError("it has no recipe")


def _require_look(values: Array, shape: tuple[int, int], made: LookRecipe | None) -> None:
    """Raise ValueError where numbers are not those of a look, or it has no recipe."""
    if values.dtype != "float64" or values.shape != shape:
        raise ValueError("its numbers are not those of its tokens")
    if made is None:
        raise ValueError("it has no recipe")


LOSSES: Final = FileKind(KeptLosses, ".losses.djinn", "file of losses")
LENS: Final = FileKind(KeptLens, ".lens.djinn", "file of a lens")
EFFECT: Final = FileKind(KeptEffect, ".effect.djinn", "file of an effect")
SPLICE: Final = FileKind(KeptSplice, ".splice.djinn", "file of a splice")
SNAPSHOT: Final = FileKind(KeptSnapshot, ".snapshot.djinn", "file of a snapshot")
WATCHED: Final = FileKind(KeptWatched, ".watched.djinn", "file of what a watch recorded")
SCORES: Final = FileKind(KeptHeads, ".heads.djinn", "file of head scores")
PATTERNS: Final = FileKind(KeptHeads, ".patterns.djinn", "file of attention patterns")
PARTS: Final = FileKind(KeptParts, ".direct.djinn", "file of a direct attribution")
