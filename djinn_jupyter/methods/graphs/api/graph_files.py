"""The content of the file of an attribution graph: the reply of the engine, with its recipe."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.client.measurement_files import KeptMeasurement
from djinn_jupyter.client.result_files import FileKind, Tensors
from djinn_jupyter.wire.replies import GraphMade


class KeptGraph(KeptMeasurement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file, whose effects are one tensor; what each target has is three others."""

    reply: GraphMade

    def tensors(self) -> Tensors:
        one = self.reply
        arrays = {"edges": one.edges, "reached": one.reached, "bias": one.bias, "summed": one.summed}
        return {name: (array.shape, [array]) for name, array in arrays.items()}

    def check(self) -> None:
        one = self.reply
        targets, features = len(one.outputs) + len(one.sites), len(one.sites)
        sources = features + (one.all_layers + 1) * len(one.texts)
        if one.edges.shape != (targets, sources) or one.edges.dtype != "float32":
            raise ValueError("its effects are not those of its nodes")
        sides = (one.reached, one.bias, one.summed)
        if any(side.shape != (targets,) or side.dtype != "float64" for side in sides):
            raise ValueError("its sums are not those of its targets")
        if not one.outputs or len(one.weights) != len(one.outputs):
            raise ValueError("its outputs have not one weight each")
        if {len(one.positions), len(one.values)} != {features} or not all(
            0 <= at < len(one.texts) for at in one.positions
        ):
            raise ValueError("its features have no positions of its line")
        if one.made is None:
            raise ValueError("it has no recipe")


GRAPH: Final = FileKind(KeptGraph, ".graph.djinn", "file of an attribution graph")
