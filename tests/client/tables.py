"""Every kind of reading that is a table, one of each, from an engine in this process. Knows no pandas."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import djinn_jupyter as dj
import djinn_jupyter.api
import djinn_jupyter.methods
from djinn_jupyter.api.batches import DoseRows, responses
from djinn_jupyter.api.engine import Branches, RemoteEngine
from djinn_jupyter.api.looks import Effect, Lens, Snapshot
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.result_files import Reproduction
from djinn_jupyter.api.rules import SteeringRules
from djinn_jupyter.api.stops import StopHistory
from djinn_jupyter.api.studies import KeptTable, Study, StudyItem, StudyReport
from djinn_jupyter.api.tables import Listing, Tabular
from djinn_jupyter.api.watching import Watched
from djinn_jupyter.methods.circuits.api.circuits import CircuitCurve
from djinn_jupyter.methods.datasets.api.activations import Values
from djinn_jupyter.methods.graphs.api import PrunedGraph
from djinn_jupyter.methods.sweep.api.grid import PairStatistics
from tests import saes, transcoders

BASES: Final = (Tabular, Result)
LINE, OTHER = [9, 8, 7, 21, 9], [9, 8, 7, 22, 9]
METRIC = "logit(5) - logit(7)"
LINES: dict[str, Any] = {"clean": LINE, "corrupted": OTHER, "metric": METRIC}
PAIRS: dict[str, Any] = {
    **LINES,
    "clean": [LINE, OTHER],
    "corrupted": [OTHER, LINE],
    "site": "mlp_out",
    "over": "layer",
}


def stopped(engine: RemoteEngine) -> Any:
    session = engine.session("mine", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    return session


def watched(engine: RemoteEngine) -> Watched:
    session = engine.session("mine", fresh=True)
    session.watch("resid_post.1")
    session.run(LINE, max_new_tokens=2, free=True)
    return session.watched("resid_post.1")


def dosed(engine: RemoteEngine) -> DoseRows:
    session = engine.session("mine", fresh=True)
    session.steer("mlp_out.1", dj.scale(1.0))
    rows, doses = session.run(LINE, coefs=[0.0, 2.0], max_new_tokens=0), [0.0, 2.0]
    return DoseRows(rows, doses, [METRIC], responses(rows, doses, [METRIC]))


def ruled(engine: RemoteEngine) -> SteeringRules:
    session = stopped(engine)
    session.steer("mlp_out.1", dj.scale(0.5))
    return session.rules()


def effect(engine: RemoteEngine) -> Effect:
    session = stopped(engine)
    session.edit(dj.scale(0.0))
    return session.effect()


def traced(engine: RemoteEngine) -> MemoryTrace:
    with engine.memory_trace(hertz=100) as trace:
        stopped(engine)
    return trace


def spliced(engine: RemoteEngine, folder: Path) -> dj.Splice:
    engine.add_module("sae", saes.saved(folder / "sae", saes.drawn(32)), at="resid_post.1")
    try:
        return dj.splice(engine, "sae.1", [LINE])
    finally:
        engine.remove_module("sae")


def paged(engine: RemoteEngine, folder: Path) -> dj.FeaturePage:
    engine.add_module("sae", saes.saved(folder / "sae", saes.drawn(32)), at="resid_post.1")
    try:
        return engine.feature("sae.1[5]", over=engine.collect([LINE, OTHER, [3, 4, 5]], "sae.1", to=folder / "acts"))
    finally:
        engine.remove_module("sae")


def graphed(engine: RemoteEngine, folder: Path) -> dj.AttributionGraph:
    layers = {layer: transcoders.drawn(32, seed=layer) for layer in range(engine.description.layers)}
    engine.add_transcoders("tc", transcoders.set_saved(folder / "tc", layers), "mlp_in")
    try:
        return dj.attribution_graph(engine, LINE, METRIC)
    finally:
        engine.remove_module("tc")


def studied(engine: RemoteEngine) -> Study:
    study = dj.study("capitals")
    study.add(engine.loss([LINE, OTHER]), title="loss")
    return study


def found_edges(engine: RemoteEngine) -> dj.Edges:
    return dj.edges(engine, **LINES, top=2)


TABLES: Final[dict[type, Callable[[RemoteEngine, Path], Any]]] = {
    dj.Grid: lambda engine, folder: dj.sweep(engine, **LINES, site="resid_post", over="layer,position"),
    PairStatistics: lambda engine, folder: dj.sweep(engine, **PAIRS).statistics(),
    dj.Losses: lambda engine, folder: engine.loss([LINE, OTHER]),
    dj.HeadScores: lambda engine, folder: engine.head_scores([LINE]),
    dj.HeadPatterns: lambda engine, folder: stopped(engine).patterns(),
    dj.HeadPage: lambda engine, folder: engine.head("2.2", [LINE, OTHER]),
    dj.ScoreParts: lambda engine, folder: stopped(engine).why("2.2", key=1),
    dj.TokenMeasures: lambda engine, folder: stopped(engine).text(metric=METRIC, site="resid_post.1"),
    dj.TextLens: lambda engine, folder: stopped(engine).text_lens(2, tokens=[3], layers=[0, 2]),
    dj.Attribution: lambda engine, folder: dj.direct(engine, LINE, metric=METRIC, over="layer,head,neuron"),
    dj.Edges: lambda engine, folder: found_edges(engine),
    dj.Circuit: lambda engine, folder: dj.circuit(engine, found_edges(engine), 5),
    CircuitCurve: lambda engine, folder: dj.circuit_curve(engine, found_edges(engine)),
    dj.AttributionGraph: graphed,
    PrunedGraph: lambda engine, folder: graphed(engine, folder).pruned(),
    dj.Splice: spliced,
    dj.FeaturePage: paged,
    Values: lambda engine, folder: engine.collect([LINE, OTHER[:3]], "z.1", to=folder)["z.1"],
    dj.Activations: lambda engine, folder: engine.collect([LINE, OTHER[:3]], "z.1,resid_post.1[2]", to=folder),
    Lens: lambda engine, folder: stopped(engine).lens(3),
    Effect: lambda engine, folder: effect(engine),
    Snapshot: lambda engine, folder: stopped(engine).inspect(),
    Watched: lambda engine, folder: watched(engine),
    MemoryTrace: lambda engine, folder: traced(engine),
    DoseRows: lambda engine, folder: dosed(engine),
    SteeringRules: lambda engine, folder: ruled(engine),
    StopHistory: lambda engine, folder: stopped(engine).history(),
    Branches: lambda engine, folder: stopped(engine) and engine.tree(),
    Listing: lambda engine, folder: stopped(engine).breakpoints(),
    KeptTable: lambda engine, folder: KeptTable({"layer": [0, 1], "value": [0.5, 1.5]}),
    Study: lambda engine, folder: studied(engine),
    StudyItem: lambda engine, folder: studied(engine)[0],
    StudyReport: lambda engine, folder: studied(engine).check(),
}


def kinds_with_columns() -> Iterator[type]:
    """Yield every class of the client that tells itself by column."""
    of_the_client = pkgutil.walk_packages(djinn_jupyter.api.__path__, "djinn_jupyter.api.")
    of_methods = pkgutil.walk_packages(djinn_jupyter.methods.__path__, "djinn_jupyter.methods.")
    for module in (*of_the_client, *(one for one in of_methods if ".api" in one.name)):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and one.__module__ == module.name and "columns" in vars(one) and one not in BASES:
                yield one


def the_same(one: object, other: object) -> bool:
    """Return whether two entries of a table are equal, of which NaN is equal to itself, and to None."""
    return one is other or bool(one == other) or all(value is None or value != value for value in (one, other))


def made_again(engine: RemoteEngine, result: Any, folder: Path) -> Reproduction:
    """Keep a result, require that its file has all of it, and return it computed again from that file alone, which has
    to give the same bits and to leave no session."""
    file = result.save(folder / f"kept{result.ending}")
    read = type(result).read(file)
    values = result.compared_values
    assert read.compared_values.tobytes() == values.tobytes()
    assert (read.recipe, repr(read)) == (result.recipe, repr(result))
    assert read.columns().keys() == result.columns().keys()
    assert all(all(map(the_same, column, result.columns()[name])) for name, column in read.columns().items())
    again = dj.reproduce(engine, file)
    assert (again.same, again.different, again.origin, again.notes) == (True, 0, (), ()), again
    assert again.again is not None
    assert repr(again).startswith(f"The same bits: {values.size:,} values of ")
    assert repr(again).count("\n") == 0
    assert engine.sessions() == ()
    return again


def of_equal_length(table: dict[str, list[Any]]) -> bool:
    return (
        bool(table) and len({len(column) for column in table.values()}) == 1 and np.size(next(iter(table.values()))) > 0
    )
