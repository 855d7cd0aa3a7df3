"""The engine's modules know each other one way, types included, and none is given the engine but those that make it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.import_graph import circles, import_graph

ENGINE = Path(__file__).parents[2] / "djinn_jupyter" / "engine"
MAY_TAKE_ENGINE = {"startup/build.py", "startup/selftest.py"}  # beside the loop itself


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


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(import_graph(ENGINE)) == []


def test_a_circle_of_types_is_found() -> None:
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert circles(graph) == [["a", "b", "c"]]


def test_the_graph_sees_imports_for_types_and_relative_ones(tmp_path: Path) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "one.py").write_text("if TYPE_CHECKING:\n    from djinn_jupyter.engine.two import Two\n")
    (package / "two.py").write_text("def f():\n    from .one import One\n")
    assert circles(import_graph(package)) == [["engine.one", "engine.two"]]


def test_only_start_up_and_the_self_test_are_given_the_engine() -> None:
    found = {path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.py")}
    takers = {name for name in found if any(functions_that_take("Engine", (ENGINE / name).read_text()))}
    assert takers == MAY_TAKE_ENGINE


def test_nothing_of_the_debug_adapter_is_given_the_adapter() -> None:
    """Each of its parts gets the parts that it uses, and none the whole."""
    package = ENGINE.parent
    files = [*(package / "dap").rglob("*.py"), *(package / "magics").rglob("*.py")]
    assert [path.name for path in files if any(functions_that_take("Adapter", path.read_text()))] == []


def test_the_debug_adapters_modules_know_each_other_one_way() -> None:
    assert circles(import_graph(ENGINE.parent / "dap")) == []


def test_a_function_that_takes_the_engine_is_found() -> None:
    source = 'def f(engine: Engine): ...\ndef g(*, engine: "Engine"): ...\ndef h(e: list[Engine] | None): ...'
    assert list(functions_that_take("Engine", source)) == ["f", "g", "h"]
