"""The same words mean the same on every result: top, columns, to_pandas, save, read and recipe. The results are all
classes that the Python API leads to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.api.tables import Charted
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Values
from tests.client import tables
from tests.house.test_results import IN_FOLDERS, python_api, results

RESULTS: Final = tuple(results())
FIRST: Final = {  # the parameters that a word has on every result, with their defaults
    "top": {"count": STRONGEST},
    "columns": {},
    "to_pandas": {},
    "save": {"path": inspect.Parameter.empty, "replace": False},
    "read": {"path": inspect.Parameter.empty},
}
MORE: Final = {  # what some results have besides
    (dj.Grid, "columns"): {"by": "pair"},
    (dj.Grid, "to_pandas"): {"by": "pair"},
    (dj.HeadScores, "top"): {"kind": "induction"},
    (dj.TokenMeasures, "top"): {"measure": None},
    (dj.HeadPage, "top"): {"of": "summed"},
    (dj.AttributionGraph, "top"): {"of": "edges"},
    (dj.ScoreParts, "top"): {"at": None},
}


def trained(engine: RemoteEngine, folder: Path) -> dj.TrainedModule:
    acts = engine.collect([tables.LINE, tables.OTHER], "resid_post.1", to=folder / "acts")
    return dj.steering_vector(acts, [True, False], to=folder / "made", site="resid_post.1")


EXAMPLES: Final[dict[type, Callable[[RemoteEngine, Path], Any]]] = {**tables.TABLES, dj.TrainedModule: trained}


def read_sites(acts: dj.Activations) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(acts[site], dtype=np.float64).reshape(-1) for site in acts])


# What `top` ranks, by another way than its own; for all other results it ranks `values`.
RANKED: Final[dict[type, Callable[[Any], Any]]] = {
    dj.Grid: lambda grid: grid.values - grid.corrupted,
    dj.Lens: lambda lens: lens.columns()["probability"],
    dj.Effect: lambda effect: np.subtract(
        effect.columns()["probability_after"], effect.columns()["probability_before"]
    ),
    dj.HeadScores: lambda scores: scores.induction,
    dj.TokenMeasures: lambda text: text.of(text.by)[:-1],
    dj.FeaturePage: lambda page: [one.value for one in page.examples],
    dj.HeadPage: lambda page: [one.summed for one in page.reply.summed],
    dj.ScoreParts: lambda parts: [one.value for side in (parts.by_key, parts.by_query) for one in side.parts],
    dj.TextLens: lambda lens: lens.columns()["top 1"],
    dj.Circuit: lambda circuit: circuit.columns()["score"],
    dj.Attribution: lambda parts: [
        value
        for value, layer in zip(parts.columns()["value"], parts.columns()["layer"], strict=True)
        if layer is not None
    ],
    dj.AttributionGraph: lambda graph: graph.pruned().columns()["effect"][:1],  # the one with the most influence
    dj.Activations: read_sites,
    dj.TrainedModule: lambda module: list(module.figures.values()),
}


def parameters(kind: type, word: str) -> dict[str, Any]:
    found = inspect.signature(getattr(kind, word)).parameters.values()
    return {one.name: one.default for one in found if one.name != "self"}


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_every_result_has_the_words_with_the_same_parameters(kind: type) -> None:
    for word, first in FIRST.items():
        wanted = first | MORE.get((kind, word), {})
        if word == "save" and kind in IN_FOLDERS:
            del wanted["replace"]  # no folder is written over
        assert parameters(kind, word) == wanted, word
    assert isinstance(inspect.getattr_static(kind, "recipe"), property)
    assert inspect.ismethod(kind.read)


def test_whatever_is_drawn_has_the_words_of_figures() -> None:
    drawn = [kind for kind in python_api.public_classes() if issubclass(kind, Charted)]
    assert drawn
    for kind in drawn:
        assert (parameters(kind, "figure"), parameters(kind, "plot")) == ({}, {"ax": None}), kind
        assert parameters(kind, "save") == FIRST["save"], kind


def test_every_table_has_its_two_words() -> None:
    told = [kind for kind in python_api.public_classes() if hasattr(kind, "columns")]
    assert {*EXAMPLES, dj.TrainedModule} >= {kind for kind in told if "columns" in vars(kind)}
    for kind in told:
        assert parameters(kind, "to_pandas") == parameters(kind, "columns"), kind


def test_every_result_has_an_example_here() -> None:
    assert {*RESULTS} <= EXAMPLES.keys()
    assert {*RANKED} <= {*RESULTS}


@pytest.mark.parametrize("kind", [*RESULTS, Values], ids=lambda kind: kind.__name__)
def test_the_largest_come_first_and_columns_are_of_equal_length(
    engine: RemoteEngine, tmp_path: Path, kind: type
) -> None:
    result = EXAMPLES[kind](engine, tmp_path)
    assert tables.of_equal_length(result.columns())
    ranked = np.abs(np.asarray(RANKED.get(kind, all_values)(result), dtype=np.float64)).reshape(-1)
    sizes = [abs(row[-1]) for row in result.top()]
    assert result.top(1) == result.top()[:1]
    assert sizes[0] == pytest.approx(np.nanmax(ranked), rel=1e-12)
    if kind is not dj.AttributionGraph:
        assert sizes == sorted(sizes, reverse=True)
        best = np.sort(ranked[~np.isnan(ranked)])[::-1]
        assert sizes == pytest.approx(best[:STRONGEST].tolist(), rel=1e-12)
        assert len(result.top(10**6)) == best.size
    assert len({len(row) for row in result.top()}) == 1
    assert (result.top(0), result.top(-1)) == ([], [])
    with pytest.raises(UsageError, match=r"^count is a whole number, not 'x'\.$"):
        result.top("x")


def all_values(result: Any) -> Any:
    return result.compared_values if hasattr(result, "compared_values") else np.asarray(result)


def test_the_place_of_a_collected_value_is_where_it_was_read(engine: RemoteEngine, tmp_path: Path) -> None:
    lines = [tables.LINE, tables.OTHER[:3], tables.OTHER]
    for name, sites, at in (
        ("all", "z.1,resid_post.1", None),
        ("ends", "z.1,resid_post.1[2]", [0, -1]),
        ("end", "z.1,resid_post.1", [-1]),  # KeyError before.
    ):
        acts = engine.collect(lines, sites, to=tmp_path / name, positions=at, shard_prompts=2)
        assert len(acts.shards) == 2
        for site, prompt, position, token, feature, value in acts.top(40):
            values = acts[site][prompt] if at is None else acts[site][prompt].reshape(len(at), -1)
            row = position if at is None else at.index(position - len(lines[prompt]) if position else 0)
            assert values[row].reshape(-1)[feature] == value
            assert lines[prompt][position] == token
        assert {row[0] for row in acts.top(10**6)} == set(acts)


@pytest.mark.parametrize("kind", sorted(IN_FOLDERS, key=repr), ids=lambda kind: kind.__name__)
def test_a_result_in_a_folder_is_saved_as_a_copy(engine: RemoteEngine, tmp_path: Path, kind: Any) -> None:
    result = EXAMPLES[kind](engine, tmp_path / "first")
    copy = result.save(tmp_path / "copy")
    for one in sorted(result.folder.rglob("*")):
        if one.is_file():
            assert (copy / one.relative_to(result.folder)).read_bytes() == one.read_bytes()
    read = kind.read(copy)
    assert (read.recipe, read.columns(), read.folder) == (result.recipe, result.columns(), copy)
    for there in (copy, result.folder, result.folder / "inside"):
        with pytest.raises(UsageError, match=r"is there already, or inside the folder: choose another name\.$"):
            result.save(there)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", "first"]
    with pytest.raises(UsageError, match=r"^There is no "):
        kind.read(tmp_path)
