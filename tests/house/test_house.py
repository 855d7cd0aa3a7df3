"""One version, one command surface: the documents' promises hold."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import djinn_jupyter
from tests.house.repository import nodes, parsed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def required(requirements: list[str]) -> set[str]:
    """The names in a list of requirements, normalised."""
    return {normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_by() -> set[str]:
    """Top-level modules that the package's files import, wherever in the file."""
    names: set[str] = set()
    for node in (node for module in parsed().values() for node in nodes(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_the_version_is_the_same_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(\d\S+)\]", changelog, re.MULTILINE)
    assert newest
    for distribution in ("djinn-jupyter", "djinn-jupyter-client"):
        assert metadata.version(distribution) == djinn_jupyter.__version__ == newest[1]


def test_every_make_command_that_the_documents_name_exists() -> None:
    assert {"lab", "demo", "test", "check", "bench", "setup"} <= TARGETS
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "evaluation" / "README.md"]
    command = re.compile(r"(?:`|^(?=make [a-z]+ *(?:[A-Z#]|$)))make ([a-z-]+)", re.MULTILINE)  # prose may begin so too
    named = {(d.name, t) for d in documents for t in command.findall(d.read_text())}
    assert {target for name, target in named if name == "README.md"} >= {"lab", "demo"}
    assert {(document, target) for document, target in named if target not in TARGETS} == set()


def test_ci_runs_the_developers_command_and_nothing_else() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert commands[-1] == "make test"
    assert len(commands) == 3


def test_every_import_is_a_declared_dependency() -> None:
    providers = metadata.packages_distributions()
    extras = PROJECT["optional-dependencies"]
    declared = required(PROJECT["dependencies"]) | required(extras["engine"]) | required(extras["lab"])
    declared |= required(extras["cluster"]) | required(extras["transformer-lens"])
    declared |= required(extras["store"]) | required(extras["nnsight"]) | required(extras["quantized"])
    used = imported_by() - set(sys.stdlib_module_names) - {"djinn_jupyter"}
    undeclared = {name for name in used if not {normal(p) for p in providers.get(name, [name])} & declared}
    assert undeclared == set()


def test_an_installation_enables_the_server_extension() -> None:
    """The file that hatchling puts into `etc/jupyter`, editable or not, names the extension that Jupyter then loads."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    (source,) = [s for s, target in build["shared-data"].items() if "/jupyter_server_config.d/" in target]
    assert json.loads((ROOT / source).read_text()) == {"ServerApp": {"jpserver_extensions": {"djinn_jupyter": True}}}
    (point,) = djinn_jupyter._jupyter_server_extension_points()
    assert point["app"].name == point["module"] == "djinn_jupyter"


def test_the_client_side_does_not_require_torch() -> None:
    assert required(PROJECT["dependencies"]) & {"torch", "transformers", "tokenizers"} == set()


def test_every_declared_dependency_has_a_tested_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    extras = [requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra]
    assert required(PROJECT["dependencies"] + extras) - pinned == set()
    assert [line for line in lines if "+" in line] == []  # a local build is not to be had elsewhere


def test_a_test_that_is_deselected_without_a_gpu_needs_one() -> None:
    """Tests that pretend a GPU run everywhere, so their names must not end like those that `conftest.py` deselects."""
    named = [text for path in (ROOT / "tests").rglob("test_*.py") if "_on_a_gpu(" in (text := path.read_text())]
    files = [ast.parse(text) for text in named]
    tests = [node for file in files for node in ast.walk(file) if isinstance(node, ast.FunctionDef)]
    found = [test for test in tests if test.name.startswith("test_") and test.name.endswith("_on_a_gpu")]
    assert found
    assert [test.name for test in found if "assert DEVICE.type == 'cuda'" not in ast.unparse(test)] == []
