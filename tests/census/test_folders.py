"""The folders of the package, and what each imports."""

from __future__ import annotations

from tests.census import folders
from tests.house.import_graph import import_graph

GRAPH = import_graph(folders.ROOT / folders.PACKAGE)


def test_no_folder_is_reached_from_itself_but_by_the_imports_that_are_to_be_mended() -> None:
    assert folders.folder_circles(GRAPH) == []


def test_no_two_folders_break_a_contract_that_did_not_break_it_before() -> None:
    """Each import that breaks one is in `arrows.txt`, below the two folders; those are the work of the later steps."""
    listed = {line for line in folders.ARROWS.read_text().splitlines() if line.startswith("# ")}
    assert {f"# {here} -> {there}" for here, there in folders.broken(GRAPH)} <= {
        line.partition(":")[0] for line in listed
    }


def test_torch_is_imported_where_it_may_be() -> None:
    assert [*folders.torch_outside()] == []


def test_an_import_of_the_core_that_plugs_into_it_is_found() -> None:
    graph = {
        "djinn_jupyter.engine.loop.turns": frozenset({"djinn_jupyter.methods.sweep.engine.sweep"}),
        "djinn_jupyter.methods.sweep.engine.sweep": frozenset({"djinn_jupyter.engine.session.session"}),
        "djinn_jupyter.api.session": frozenset({"djinn_jupyter.engine.loop.turns"}),
    }
    assert {pair: imports[0][2] for pair, imports in folders.broken(graph).items()} == {
        ("api", "engine/loop"): "engine and api meet on the wire",
        ("engine/loop", "methods/sweep/engine"): "the core imports nothing that plugs into it",
    }


def test_every_folder_has_its_row() -> None:
    """A new folder cannot be forgotten: `LAYERS` says where it stands, or this fails."""
    paths = {path.parent.relative_to(folders.ROOT) for path in (folders.ROOT / folders.PACKAGE).rglob("*.py")}
    assert [path for path in paths if folders.place(".".join(path.parts)) == "(top)"] == []


def test_the_core_is_what_nothing_plugs_into() -> None:
    assert folders.is_core("djinn_jupyter.engine.store.journal")
    assert not folders.is_core("djinn_jupyter.methods.sweep.card")
    assert not folders.is_core("djinn_jupyter.remote.engine.lease")
