"""Every result has its recipe and every table is one of pandas: asked of all classes that the Python API leads to."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import engine, interrupts, memory_trace, reproducing, rules, stops, studies, tables
from djinn_jupyter.link.transport import WireBytes
from djinn_jupyter.methods.datasets.api import activations
from djinn_jupyter.methods.features.api import examples
from djinn_jupyter.methods.graphs import api
from djinn_jupyter.methods.sweep.api.grid import PairStatistics

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import python_api  # noqa: E402  a program beside the documents, which are no package

HANDLES: Final = {dj.RemoteEngine, dj.RemoteSession, rules.SteeringRule}
STOPS: Final = {dj.Paused, dj.Finished}  # where a session stands; what is read there has the recipe
SIGNALS: Final = {*(dj.Interrupted, dj.BatchInterrupted, dj.BatchEnded, dj.DjinnError, interrupts.WorkInterrupted)}
PARTS: Final = {  # of a result that has the recipe
    *(activations.Values, activations.TorchValues, api.PrunedGraph, api.GraphNode, PairStatistics),
    dj.Reproduction,
    *(examples.FeatureValues, examples.FeatureExample),
}
OF_THE_MOMENT: Final = {  # times and bytes, and descriptions of what there is now: nothing computes them again
    *(
        tables.Listing,
        rules.SteeringRules,
        stops.StopHistory,
        engine.Branches,
        WireBytes,
        memory_trace.MemoryTrace,
        memory_trace.Reading,
        memory_trace.TracedTransfer,
    )
}
OF_SEVERAL: Final = {dj.Study, studies.StudyItem, studies.StudyReport, studies.StudyRow}  # results in one file
NO_RESULTS: Final = HANDLES | STOPS | SIGNALS | PARTS | OF_THE_MOMENT | OF_SEVERAL
IN_FOLDERS: Final = {dj.Activations, dj.TrainedModule}  # written as they are made, and read by their folder


def results() -> Iterator[type]:
    """Yield the classes of results: all that the Python API leads to and that is nothing else."""
    yield from (kind for kind in python_api.public_classes() if kind not in NO_RESULTS)


def without_recipe(kinds: Iterable[type]) -> list[str]:
    """Return the classes that have no recipe, no file with it, or that `dj.reproduce` does not take."""
    taken = {*reproducing.kinds().values()} | IN_FOLDERS
    needed = ("recipe", "read", "save")
    return [kind.__name__ for kind in kinds if kind not in taken or not all(hasattr(kind, of) for of in needed)]


def without_table(kinds: Iterable[type]) -> list[str]:
    """Return the classes that are no table of pandas."""
    return [kind.__name__ for kind in kinds if not (hasattr(kind, "columns") and hasattr(kind, "to_pandas"))]


def test_every_result_has_its_recipe() -> None:
    assert without_recipe(results()) == []


def test_every_result_is_a_table() -> None:
    assert without_table(results()) == []


def test_all_that_is_kept_is_found() -> None:
    """So that no result is missing from the list because no verb of the API returns it."""
    assert {*reproducing.kinds().values()} | IN_FOLDERS == set(results())
    assert set(python_api.public_classes()) >= NO_RESULTS, "named here and gone"


def test_whatever_tells_itself_by_column_is_a_table_of_pandas() -> None:
    told = [kind for kind in python_api.public_classes() if hasattr(kind, "columns")]
    assert [kind.__name__ for kind in told if not issubclass(kind, tables.Tabular) and kind not in {dj.Grid}] == []
    assert callable(dj.Grid.to_pandas)


class Ranking:
    """A result as one would add it, without recipe and table."""


def ranked(session: dj.RemoteSession) -> Ranking:
    raise NotImplementedError


def test_a_new_result_without_recipe_and_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranking, "__module__", "djinn_jupyter.api.ranking")
    monkeypatch.setattr(dj.RemoteSession, "ranked", ranked, raising=False)
    monkeypatch.setattr(python_api, "public_classes", python_api.public_classes.__wrapped__)
    assert without_recipe(results()) == without_table(results()) == ["Ranking"]


def test_lists_of_descriptions_are_tables() -> None:
    """A verb or a function that returns several descriptions of one kind returns them as a table."""
    assert sorted(name for name, hint in returned() if hint.startswith(("tuple[", "list["))) == sorted(NO_LISTINGS)


def test_what_a_verb_returns_as_it_crossed_the_wire_is_no_list() -> None:
    """Such a message has no `to_pandas`: one with descriptions among its fields is named here, with its reason."""
    found = {
        f"{kind.__name__}.{field.name}"
        for kind in messages_returned()
        for field in msgspec.structs.fields(kind)
        if any(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in several(field.type))
    }
    assert sorted(found) == sorted(WITHIN_A_DESCRIPTION)


def returned() -> Iterator[tuple[str, str]]:
    """Yield the name and the type of the result of each verb of a handle, and of each function of `dj`."""
    for kind in HANDLES:
        for name, member in python_api.public_members(kind):
            yield f"{kind.__name__}.{name}", str(python_api._as_function(member).__annotations__.get("return", ""))
    for name, function in python_api.public_functions().items():
        yield f"dj.{name}", str(function.__annotations__.get("return", ""))


def messages_returned() -> set[type[msgspec.Struct]]:
    """Return the structs of the wire that a verb of a handle returns by itself, not in a list."""
    names = {hint.removeprefix("replies.") for _, hint in returned()}
    return {kind for kind in python_api.messages() if kind.__name__ in names}


def several(hint: Any) -> tuple[Any, ...]:
    """Return the types within a tuple."""
    return typing.get_args(hint) if typing.get_origin(hint) is tuple else ()


NO_LISTINGS: Final = {
    "RemoteEngine.close": "names",
    "RemoteEngine.stop": "names",
    "RemoteSession.metrics": "numbers",
    "SteeringRule.limits": "words",
}
WITHIN_A_DESCRIPTION: Final = {
    "EngineStatistics.slabs": "summed in `engine.memory_trace`, which is a table",
    "EngineStatistics.tiers": "likewise",
    "EngineStatistics.people": "`engine.people()` is the table",
    "ModelDescription.cache_groups": "which layers keep their keys alike",
    "ModelDescription.checks": "the self-test's sentences",
    "ModelDescription.points": "names of points, with what each is",
    "SessionDescription.breakpoints": "`session.breakpoints()` is the table",
    "SessionDescription.rules": "`session.rules()` is the table",
    "SessionDescription.shares": "names of persons, with what each may do",
    "SessionDescription.watches": "`session.watched(site)` is the table of each",
}
