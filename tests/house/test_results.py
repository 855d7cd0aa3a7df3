"""Every result has its recipe and every table is one of pandas: asked of all classes that the Python API leads to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.client import activations, frames, graphs, interrupts, memory_trace, rules
from djinn_jupyter.client.connection.wire_bytes import WireBytes
from djinn_jupyter.client.measurement import Measurement
from djinn_jupyter.client.pair_statistics import PairStatistics
from djinn_jupyter.client.reproducing import MEASUREMENTS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import python_api  # noqa: E402  a program beside the documents, which are no package

HANDLES: Final = {dj.RemoteEngine, dj.RemoteSession, rules.SteeringRule}
STOPS: Final = {dj.Paused, dj.Finished}  # where a session stands; what is read there has the recipe
SIGNALS: Final = {
    *(dj.Interrupted, dj.BatchInterrupted, dj.BatchEnded, dj.DjinnError, interrupts.WorkInterrupted),
}
BASES: Final = {Measurement}
PARTS: Final = {  # of a result that has the recipe
    *(activations.Values, activations.TorchValues, graphs.PrunedGraph, graphs.GraphNode, PairStatistics),
    dj.Reproduction,
}
OF_THE_MOMENT: Final = {  # times and bytes, and descriptions of what there is now: nothing computes them again
    *(
        frames.Listing,
        rules.SteeringRules,
        WireBytes,
        memory_trace.MemoryTrace,
        memory_trace.Reading,
        memory_trace.TracedTransfer,
    ),
}
NO_RESULTS: Final = HANDLES | STOPS | SIGNALS | BASES | PARTS | OF_THE_MOMENT
NO_TABLES: Final = {
    dj.Activations: "each of its sites is one: `collection[site]`",
    dj.TrainedModule: "a module in a folder",
}
IN_FOLDERS: Final = {dj.Activations, dj.TrainedModule}  # written as they are made, and read by their folder


def results() -> Iterator[type]:
    """Yield the classes of results: all that the Python API leads to and that is nothing else."""
    yield from (kind for kind in python_api.public_classes() if kind not in NO_RESULTS)


def without_recipe(kinds: Iterable[type]) -> list[str]:
    """Return the classes that have no recipe, no file with it, or that `dj.reproduce` does not take."""
    taken = {of for _, of in MEASUREMENTS} | IN_FOLDERS | {dj.Grid}
    return [kind.__name__ for kind in kinds if kind not in taken or not all(hasattr(kind, of) for of in needed(kind))]


def needed(kind: type) -> tuple[str, ...]:
    return ("recipe",) if kind in IN_FOLDERS else ("recipe", "read", "save")


def without_table(kinds: Iterable[type]) -> list[str]:
    """Return the classes that are no table of pandas."""
    return [
        kind.__name__
        for kind in kinds
        if kind not in NO_TABLES and not (hasattr(kind, "columns") and hasattr(kind, "to_pandas"))
    ]


def test_every_result_has_its_recipe() -> None:
    assert without_recipe(results()) == []


def test_every_result_is_a_table() -> None:
    assert without_table(results()) == []


def test_all_that_is_kept_is_found() -> None:
    """So that no result is missing from the list because no verb of the API returns it."""
    assert {of for _, of in MEASUREMENTS} | IN_FOLDERS | {dj.Grid} == set(results())
    assert set(python_api.public_classes()) >= NO_RESULTS, "named here and gone"


def test_whatever_tells_itself_by_column_is_a_table_of_pandas() -> None:
    told = [kind for kind in python_api.public_classes() if hasattr(kind, "columns")]
    assert [kind.__name__ for kind in told if not issubclass(kind, frames.Tabular) and kind not in {dj.Grid}] == []
    assert callable(dj.Grid.to_pandas)


class Ranking:
    """A result as one would add it, without recipe and table."""


def ranked(session: dj.RemoteSession) -> Ranking:
    raise NotImplementedError


def test_a_new_result_without_recipe_and_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranking, "__module__", "djinn_jupyter.client.ranking")
    monkeypatch.setattr(dj.RemoteSession, "ranked", ranked, raising=False)
    monkeypatch.setattr(python_api, "public_classes", python_api.public_classes.__wrapped__)
    assert without_recipe(results()) == without_table(results()) == ["Ranking"]


def test_lists_of_descriptions_are_tables() -> None:
    """A verb that returns several descriptions of one kind returns them as a table."""
    found = [
        f"{kind.__name__}.{name}"
        for kind in HANDLES
        for name, member in python_api.public_members(kind)
        if str(python_api._as_function(member).__annotations__.get("return", "")).startswith("tuple[")
    ]
    assert sorted(found) == sorted(NO_LISTINGS)


NO_LISTINGS: Final = {
    "RemoteEngine.tree": "branches within branches",
    "RemoteEngine.stop": "names",
    "RemoteSession.metrics": "numbers",
    "SteeringRule.limits": "words",
}
