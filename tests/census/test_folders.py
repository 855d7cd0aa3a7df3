"""The table of old modules and new folders, against the modules that there are."""

from __future__ import annotations

from tests.census import folders
from tests.house.import_graph import import_graph

GRAPH = import_graph(folders.ROOT / folders.PACKAGE)


def test_the_rules_give_every_module_a_folder() -> None:
    assert {folders.place(module) for module in GRAPH} <= folders.LEVEL.keys()
    assert folders.RULES.keys() == {folder for folder in folders.LEVEL if not folder.startswith("methods")}


def test_the_committed_table_is_the_one_that_the_rules_make() -> None:
    """A module that came later is placed by the rules; one that went is in the table until it is written anew."""
    rows = dict(line.split(" -> ") for line in folders.TABLE.read_text().splitlines())
    assert {module: folders.place(module) for module in rows} == rows


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


def test_a_module_that_has_moved_lies_where_it_goes() -> None:
    assert folders.place("djinn_jupyter.methods.sweep.engine.cells") == "methods/sweep/engine"
    assert folders.place("djinn_jupyter.methods.sweep.request") == "methods/sweep/request"
    assert folders.place("djinn_jupyter.engine.store.journal") == "engine/store"
    assert folders.is_core("djinn_jupyter.engine.store.journal")
    assert not folders.is_core("djinn_jupyter.methods.sweep.card")
