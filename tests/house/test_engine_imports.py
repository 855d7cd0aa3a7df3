"""Our modules know each other one way, types included, and none is given the engine but those that make it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.import_graph import circles, import_graph, imported_in_functions

ENGINE = Path(__file__).parents[2] / "djinn_jupyter" / "engine"
PACKAGE = ENGINE.parent
EVALUATION = PACKAGE.parent / "evaluation" / "djinn_evaluation"
# Files that import our own modules within functions: the reason, and those modules or the folders they are in.
LATE = {
    "remote/cli/cluster.py": ("Ray, which an environment of engines may not have", {"remote.cluster"}),
    "editors/cli.py": ("`djinn --help` needs neither zmq nor the adapter", {"editors.dap"}),
    "cli/engines.py": ("the process of `djinn serve` stays small", {"api.engine", "api.loading"}),
    "remote/cli/entry.py": ("the process of `djinn serve` stays small", {"api.loading"}),
    "remote/cli/hub.py": ("tornado, which an environment of engines may not have", {"remote.hub"}),
    "remote/cli/people.py": ("the process of `djinn serve` stays small", {"api.loading"}),
    "api/patches.py": ("`%load_ext` reads the words of edits, which make patches", {"wire"}),
    "api/edits.py": ("`%load_ext` reads the words of edits, and must not wait for msgspec", {"wire.edits"}),
    "engine/__main__.py": ("logs and signals are set up before torch is there", {"engine.process"}),
    "engine/process/daemon.py": ("Prometheus's library, 50 ms of every start", {"engine.process.metrics"}),
    "engine/model/loading/tokenizer_process.py": ("the child alone needs transformers", {"engine.model.loading"}),
    "modules/training/__main__.py": ("it says that PyTorch is missing without it", {"modules.training.running"}),
    "magics/__init__.py": ("importing the package registers and loads nothing", {"magics"}),
    "editors/magic.py": ("experimental; only its magic loads it", {"editors.panel"}),
    "magics/kernel_state.py": (
        "a load shows its line first; the package finds its names",
        {"", "wire", "api.session", "api.names"},
    ),
    "magics/live_chart.py": ("ipywidgets, when a chart is drawn", {"widgets.live_memory"}),
    "magics/loading.py": ("a load shows its line before cards are imported", {"widgets.views", "link.registry"}),
    "magics/screen.py": ("a load shows its line before cards are imported", {"widgets.views"}),
    "magics/parsing.py": ("`%load_ext` waits for no card", {"widgets.chart"}),
    "widgets/chart.py": ("plotly and matplotlib, when a figure is drawn", {"widgets"}),
    "magics/stand_ins.py": ("`%load_ext` waits for no magic", {"magics"}),
}
MAY_TAKE_ENGINE = {"process/build.py", "process/selftest.py"}  # beside the loop itself


def functions_that_take(name: str, source: str) -> Iterator[str]:
    """Functions of which a parameter is annotated with that name, as such or within another type."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if any(one.annotation is not None and name in _names(one.annotation) for one in given):
                yield node.name


def _names(annotation: ast.expr) -> set[str]:
    words = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return words | {str(node.value) for node in ast.walk(annotation) if isinstance(node, ast.Constant)}


def _late(path: str) -> set[str]:
    return LATE[path][1] if path in LATE else set()


def _within(module: str, folder: str) -> bool:
    return f"{module}.".startswith(f"{folder}.")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types and those within functions count."""
    assert circles(import_graph(PACKAGE)) == []
    assert circles(import_graph(EVALUATION)) == []


def test_a_circle_of_types_is_found() -> None:
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert circles(graph) == [["a", "b", "c"]]


def test_the_graph_sees_imports_for_types_and_relative_ones(tmp_path: Path) -> None:
    package = tmp_path / "djinn_jupyter" / "engine"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "one.py").write_text("if TYPE_CHECKING:\n    from djinn_jupyter.engine.two import Two\n")
    (package / "two.py").write_text("def f():\n    from .one import One\n")
    assert circles(import_graph(package)) == [["djinn_jupyter.engine.one", "djinn_jupyter.engine.two"]]
    assert circles(import_graph(package.parent)) == [["djinn_jupyter.engine.one", "djinn_jupyter.engine.two"]]


def test_imports_within_functions_are_few_and_each_has_its_reason() -> None:
    found = [
        (path.relative_to(PACKAGE).as_posix(), module.removeprefix("djinn_jupyter").removeprefix("."))
        for path in PACKAGE.rglob("*.py")
        for _, module in imported_in_functions(path.read_text())
    ]
    needed = {(path, folder) for path, module in found for folder in _late(path) if _within(module, folder)}
    unnamed = [(path, module) for path, module in found if not any(_within(module, one) for one in _late(path))]
    assert unnamed == [], "import these at the top of their files, or name them in LATE with the reason"
    assert {(path, folder) for path in LATE for folder in _late(path)} == needed, (
        "LATE names more than is imported late"
    )


def test_an_import_within_a_function_is_found() -> None:
    source = "import djinn_jupyter\ndef f():\n    if x:\n        from djinn_jupyter.wire import replies\n"
    source += "    import djinn_jupyter.errors\nasync def g():\n    from .one import One\n    import torch\n"
    assert [*imported_in_functions(source)] == [
        ("f", "djinn_jupyter.errors"),
        ("f", "djinn_jupyter.wire.replies"),
        ("g", "one.One"),
    ]


def test_only_start_up_and_the_self_test_are_given_the_engine() -> None:
    found = {path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.py")}
    takers = {name for name in found if any(functions_that_take("Engine", (ENGINE / name).read_text()))}
    assert takers == MAY_TAKE_ENGINE


def test_sites_that_people_spell_are_read_in_one_place_which_knows_the_model() -> None:
    """A name of another tool is another point by model; the rest reads what the engine itself has spelled."""
    folders = [ENGINE, PACKAGE / "modules" / "engine", PACKAGE / "parallel"]
    files = [path for folder in folders for path in folder.rglob("*.py") if "parse_site" in path.read_text()]
    own = {"parallel/follower.py", "modules/engine/added.py", "engine/session/history.py"}
    assert {path.relative_to(PACKAGE).as_posix() for path in files} == {"engine/model/discovery/model_map.py"} | own


def test_what_running_a_pass_needs_has_at_most_nine_fields() -> None:
    tree = ast.parse((ENGINE / "session" / "runtime.py").read_text())
    (runtime,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Runtime"]
    fields = [node for node in runtime.body if isinstance(node, ast.AnnAssign)]
    assert 0 < len(fields) <= 9


def test_nothing_of_the_debug_adapter_is_given_the_adapter() -> None:
    """Each of its parts gets the parts that it uses, and none the whole."""
    files = [*(PACKAGE / "editors").rglob("*.py"), *(PACKAGE / "magics").rglob("*.py")]
    assert [path.name for path in files if any(functions_that_take("Adapter", path.read_text()))] == []


def test_a_function_that_takes_the_engine_is_found() -> None:
    source = 'def f(engine: Engine): ...\ndef g(*, engine: "Engine"): ...\ndef h(e: list[Engine] | None): ...'
    assert list(functions_that_take("Engine", source)) == ["f", "g", "h"]
