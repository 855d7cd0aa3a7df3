"""Every result carries its recipe: it is kept, comes back, and is computed again from the recipe alone, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.batches import DoseRows
from djinn_jupyter.api.engine import Branches, RemoteEngine
from djinn_jupyter.api.looks import Snapshot
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.api.reproducing import kinds
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.rules import SteeringRules
from djinn_jupyter.api.stops import StopHistory
from djinn_jupyter.api.studies import KeptTable, Study, StudyItem, StudyReport
from djinn_jupyter.api.tables import Listing
from djinn_jupyter.api.watching import Watched
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Values
from djinn_jupyter.methods.graphs.api import PrunedGraph
from djinn_jupyter.methods.sweep.api.grid import PairStatistics
from tests import saes, transcoders
from tests.client import tables
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build

OF_OTHERS: Final = {
    PairStatistics: "computed from a grid, which has the recipe",
    PrunedGraph: "a part of an attribution graph, which has it",
    Values: "a site of a collection, which has it",
    DoseRows: "rows of a batch, which are sessions as they are now",
    dj.Activations: "a folder, which has the recipe",
    MemoryTrace: "times and bytes of one moment",
    SteeringRules: "rules as they are now",
    StopHistory: "stops as they are now",
    Branches: "likewise",
    Listing: "descriptions of what there is now",
    KeptTable: "a table of the user's",
    Study: "several results",
    StudyItem: "one of them, which has it",
    StudyReport: "what is said of them",
}
RESULTS: Final = {kind: made for kind, made in tables.TABLES.items() if kind not in OF_OTHERS}
ENDINGS: Final = {kind: ending for ending, kind in kinds().items()}
SAE: Final[tuple[str, Callable[[RemoteEngine, Path], Any]]] = (
    "sae",
    lambda engine, folder: engine.add_module("sae", saes.saved(folder / "same", saes.drawn(32)), at="resid_post.1"),
)
ADDED: Final[dict[type, tuple[str, Callable[[RemoteEngine, Path], Any]]]] = {
    dj.Splice: SAE,
    dj.FeaturePage: SAE,
    dj.AttributionGraph: (
        "tc",
        lambda engine, folder: engine.add_transcoders(
            "tc",
            transcoders.set_saved(
                folder / "same", {n: transcoders.drawn(32, seed=n) for n in range(engine.description.layers)}
            ),
            "mlp_in",
        ),
    ),
}


def kinds_of(base: type) -> set[type]:
    """Return the classes below a class that are no base of others."""
    below = base.__subclasses__()
    return {base} if not below else {one for kind in below for one in kinds_of(kind)}


def test_no_table_is_forgotten() -> None:
    assert {*tables.kinds_with_columns()} == set(RESULTS) | set(OF_OTHERS)
    ours = {kind for kind in kinds_of(Result) if kind.__module__.startswith("djinn_jupyter.")}
    assert ours | {dj.Grid} == set(RESULTS) == {*kinds().values()} - {dj.Activations}
    assert len(set(ENDINGS.values())) == len(ENDINGS)


@pytest.fixture(scope="module")
def trained() -> Iterator[RemoteEngine]:
    """The engine's model, of which a neuron was trained on."""
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0] += 1
    with reached(build_desk(model, tokenizer())) as [found]:
        yield found


@pytest.fixture(scope="module")
def twin() -> Iterator[RemoteEngine]:
    with reached(build_desk(build("llama", layers=3), tokenizer())) as [found]:
        yield found


@contextmanager
def modules_of(engine: RemoteEngine, folder: Path, kind: type) -> Iterator[None]:
    """Have the engine have the modules that a result of this kind was computed with."""
    name, add = ADDED.get(kind, (None, None))
    if name is None or add is None:
        yield
        return
    add(engine, folder)
    try:
        yield
    finally:
        engine.remove_module(name)


@pytest.fixture(scope="module")
def computed(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Callable[[type], Any]:
    """A call that computes the result of a kind once."""

    @cache
    def of(kind: type) -> Any:
        with reached(desk) as [engine]:
            return RESULTS[kind](engine, tmp_path_factory.mktemp(kind.__name__))

    return of


@pytest.fixture
def result(computed: Callable[[type], Any], kind: type) -> Any:
    return deepcopy(computed(kind))


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_result_is_kept_with_its_recipe_and_computed_again(
    engine: RemoteEngine, tmp_path: Path, result: Any, kind: Any
) -> None:
    assert str(engine.description.name) in str(result.recipe)
    with modules_of(engine, tmp_path, kind):
        tables.made_again(engine, result, tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind is not dj.Grid], ids=lambda kind: kind.__name__)
def test_a_number_that_is_another_is_found_with_its_place(
    engine: RemoteEngine, tmp_path: Path, result: Any, kind: Any
) -> None:
    values = result.compared_values.copy()
    at = tuple(int(one[0]) for one in np.nonzero(np.isfinite(values)))
    values[at] += 1
    result.values = [values] if kind is Watched else values
    with modules_of(engine, tmp_path, kind):
        again = dj.reproduce(engine, result)
    assert (again.same, again.different, again.place) == (False, 1, result.place_of(at))
    assert repr(again).startswith(f"Other bits: 1 of {values.size:,} values differ, by up to 1")


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_another_engine_of_the_model_says_the_same(
    engine: RemoteEngine, twin: RemoteEngine, tmp_path: Path, result: Any, kind: Any
) -> None:
    with modules_of(twin, tmp_path, kind):
        found = dj.reproduce(twin, result)
    assert (found.same, found.origin) == (True, ()), found


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_another_model_is_named_where_bits_differ(
    engine: RemoteEngine, trained: RemoteEngine, tmp_path: Path, result: Any, kind: Any
) -> None:
    with modules_of(trained, tmp_path, kind):
        found = dj.reproduce(trained, result)
    assert [name for name, _, _ in found.origin] == ["model", "weights"]
    if kind is dj.FeaturePage:  # of decoders, the head and a collection, none of which has that neuron
        assert found.same
        return
    differences = np.abs(result.compared_values.astype(np.float64) - found.again.compared_values)
    assert (found.same, found.different) == (False, np.count_nonzero(differences > 0))
    assert found.largest_difference == pytest.approx(np.nanmax(differences), 1e-5)
    at = np.unravel_index(np.nanargmax(differences), differences.shape)
    place = dict(zip(result.over, at, strict=True)) if kind is dj.Grid else result.place_of(tuple(map(int, at)))
    assert found.place == place
    assert repr(found).startswith(f"Other bits: {found.different:,} of {differences.size:,} values differ, by up to ")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (dj.HeadScores, "measured again there are"),
        (dj.Attribution, "its parts are of layers 0 to 2"),
        (Snapshot, ""),
    ],
)
def test_a_model_that_cannot_repeat_it_is_named(
    engine: RemoteEngine, tmp_path: Path, result: Any, kind: Any, said: str
) -> None:
    refused = pytest.raises(UsageError, match=rf"^The measurement is of .*, which cannot repeat it: {said}")
    with reached(build_desk(build("gpt2", layers=1), tokenizer())) as [other], refused:
        dj.reproduce(other, result)


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_file_that_is_none_of_ours_is_one_sentence(
    engine: RemoteEngine, tmp_path: Path, result: Any, kind: Any
) -> None:
    file = result.save(tmp_path / f"a{result.ending}")
    whole, named = file.read_bytes(), getattr(kind, "named", "grid of a sweep")
    other = engine.loss([tables.LINE]) if kind is not dj.Losses else engine.head_scores([tables.LINE])
    for spoiled, said in (
        (whole[:-1], "is truncated: its end is missing"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "is damaged"),
        (b"", f"is no {named}"),
        (other.save(tmp_path / f"b{other.ending}", replace=True).read_bytes(), f"is no {named} that Djinn"),
    ):
        file.write_bytes(spoiled)
        for read in (kind.read, lambda file: dj.reproduce(engine, file)):
            with pytest.raises(UsageError, match=rf"^a{re.escape(kind.ending)} {said}.*\.$"):
                read(file)
    with pytest.raises(UsageError, match=rf"^There is another 'a{re.escape(kind.ending)}' already"):
        result.save(file)
    assert result.save(file, replace=True).read_bytes() == whole
    with pytest.raises(UsageError, match=rf"^A {named} is kept in a file that ends in {re.escape(kind.ending)}; "):
        result.save(tmp_path / "a.other.djinn")
    with pytest.raises(UsageError, match=r"names no file\.$"):
        result.save(f"a\0{kind.ending}")
    with pytest.MonkeyPatch.context() as home:
        home.setenv("HOME", str(tmp_path))
        assert result.save(f"~/home{kind.ending}") == tmp_path / f"home{kind.ending}"
        assert kind.read(f"~/home{kind.ending}").recipe == result.recipe
