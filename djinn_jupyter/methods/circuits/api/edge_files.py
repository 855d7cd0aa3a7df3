"""The contents of the files of edges and of circuits: the replies of the engine, with the recipe of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djinn_jupyter.client.measurement_files import KeptMeasurement
from djinn_jupyter.client.result_files import FileKind, Tensors
from djinn_jupyter.methods.circuits.request import CircuitRecipe, EdgeRecipe
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import CircuitsRun, EdgesAttributed


class KeptEdges(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of edges: the scores of each pair, and the exact changes of those that were patched."""

    paired: bool
    replies: tuple[EdgesAttributed, ...]
    patched: tuple[EdgesAttributed, ...] = ()

    def tensors(self) -> Tensors:
        named = (("scores", self.replies), ("exact", self.patched))
        return {f"{name} {n}": (one.scores.shape, [one.scores]) for name, each in named for n, one in enumerate(each)}

    def check(self) -> None:
        each = (*self.replies, *self.patched)
        if not self.replies or any(one.scores.shape != (len(one.writers), len(one.readers)) for one in each):
            raise ValueError("its scores are not those of its writers and readers")
        if len({(one.writers, one.readers) for one in each}) > 1 or any(one.scores.dtype != "float64" for one in each):
            raise ValueError("its pairs are of several models, or its scores are not float64")
        if any(one.made is None for one in each) or (self.patched and len(self.patched) != len(self.replies)):
            raise ValueError("its pairs have no recipe")


class KeptCircuit(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a circuit: its metric of each pair, its run on each, the scores of its edges, of how
    many they are and how they were chosen, at which stop, and how its interval was drawn."""

    values: Array
    replies: tuple[CircuitsRun, ...]
    scores: tuple[float, ...]
    edges: int
    confidence: float
    resamples: int
    seed: int
    how: str = ""
    stop: StopIdentity | None = None

    def tensors(self) -> Tensors:
        return {"values": (self.values.shape, [self.values])}

    def check(self) -> None:
        if self.values.dtype != "float64" or self.values.shape != (len(self.replies),):
            raise ValueError("its values are not those of its pairs")
        made = [one.made for one in self.replies if one.made is not None]
        if not made or len(made) != len(self.replies) or any(len(one.values) != 1 for one in self.replies):
            raise ValueError("its runs have no recipe, or are not of one circuit")
        if len({one.asked.circuits for one in made}) > 1 or len(made[0].asked.circuits[0]) != len(self.scores):
            raise ValueError("its runs are of several circuits")
        sizes = len(self.replies[0].writers), len(self.replies[0].readers)
        if any(writer >= sizes[0] or reader >= sizes[1] for writer, reader in made[0].asked.circuits[0]):
            raise ValueError("its edges are not those of its model")


class KeptCurve(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file of a curve: its circuits, and the share of all edges that each has."""

    circuits: tuple[KeptCircuit, ...]
    sizes: tuple[float, ...]

    def tensors(self) -> Tensors:
        return {f"values {n}": one.tensors()["values"] for n, one in enumerate(self.circuits)}

    def check(self) -> None:
        if not self.circuits or len(self.circuits) != len(self.sizes):
            raise ValueError("its circuits are not those of its sizes")
        for one in self.circuits:
            one.check()
        if len({(lines_of(one.replies), one.edges) for one in self.circuits}) > 1:
            raise ValueError("its circuits are of different lines or models")


EDGES: Final = FileKind(KeptEdges, ".edges.djinn", "file of edges")
CIRCUIT: Final = FileKind(KeptCircuit, ".circuit.djinn", "file of a circuit")
CURVE: Final = FileKind(KeptCurve, ".curve.djinn", "file of a curve of circuits")


def lines_of(replies: Sequence[EdgesAttributed] | Sequence[CircuitsRun]) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of the corrupted and the clean line of each reply."""
    asked = [one.made.asked for one in replies if one.made is not None]
    return tuple(line for one in asked for line in (one.corrupted, one.clean) if not isinstance(line, str))


def circumstances(made: EdgeRecipe | CircuitRecipe) -> Circumstances:
    """Return what the numbers of a recipe follow from besides its request."""
    return Circumstances(rules=(), attention=made.attention, by=made.by, adapter=made.adapter)
