"""The house rules that a program can check: file sizes, prose, no trace of the machine a file was written on."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable

from tests.house.repository import ROOT, in_the_repository, text_files

EMOJI = re.compile("[\U0001f000-\U0001faff\u2600-\u26ff\u2705\u2728\u274c\u2b50\ufe0f]")
MACHINE = re.compile(r"/(?:work|root)/|/opt/(?:wheels|pypi)|/home/\w|/Users/\w|/tmp/[i]pykernel_|/[.]pyenv/")
REGISTRY = re.compile(
    r"pypi\.(?:org|python)|pythonhosted\.org|registry\.(?:npmjs|yarnpkg)|deb\.debian\.org", re.IGNORECASE
)
EXCLAMATION = re.compile(r"\w!(?:\s|$)")


def found(pattern: re.Pattern[str], files: Iterable[tuple[str, str]]) -> list[str]:
    suspected = [(name, text) for name, text in files if pattern.search(text)]
    lines = [(name, number, line) for name, text in suspected for number, line in enumerate(text.splitlines(), 1)]
    return [f"{name}:{number}: {hit[0]!r}" for name, number, line in lines if (hit := pattern.search(line))]


def lines_of(suffixes: set[str], *folders: str) -> dict[str, int]:
    chosen = [p for p in in_the_repository() if p.suffix in suffixes and p.relative_to(ROOT).parts[0] in folders]
    return {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in chosen}


def prose(source: str) -> list[str]:
    """The comments and docstrings of Python source."""
    tree = ast.parse(source)
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, owners)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return docs + [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_the_repository_is_seen() -> None:
    names = {name for name, _ in text_files()}
    assert {"pyproject.toml", "Makefile", "README.md", "djinn_jupyter/errors.py"} <= names


def test_no_source_file_is_longer_than_700_lines() -> None:
    everywhere = ("djinn_jupyter", "labextension", "tests", "evaluation", "examples", "demo_training")
    assert {name: n for name, n in lines_of({".py", ".ts"}, *everywhere).items() if n > 700} == {}


def test_no_emoji() -> None:
    assert EMOJI.search("\N{ROCKET}")
    assert found(EMOJI, text_files()) == []


def test_no_path_of_the_machine_it_was_written_on() -> None:
    assert MACHINE.search("/".join(["", "home", "ada", "model"]))
    assert found(MACHINE, text_files()) == []


def test_no_package_registry_is_named() -> None:
    assert REGISTRY.search("https://" + ".".join(["pypi", "org"]))
    assert found(REGISTRY, text_files()) == []


def test_prose_does_not_shout() -> None:
    assert EXCLAMATION.search("It works" + "!")
    shouting = [(name, text) for name, text in text_files() if EXCLAMATION.search(text)]
    files = [(name, text) for name, text in shouting if name.endswith((".md", ".py"))]
    written = [(name, "\n".join(prose(text)) if name.endswith(".py") else text) for name, text in files]
    assert found(EXCLAMATION, written) == []
