"""Prose has nouns: no docstring begins with *what* or *how*, and no sentence of the package speaks of *nobody*."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.repository import text_files

CLAUSES = set("What How Who Whoever Whose Whether Which Where When Why Whatever Nobody Somebody Everybody".split())
PRONOUNS = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever)\b", re.IGNORECASE)
STORIES = {"demo_training/templates.py"}  # sentences of the demo model's language


def written(*suffixes: str) -> list[tuple[str, str]]:
    """Return the path and the text of each file of ours with one of the suffixes, but for tests and stories."""
    ours = [(path, text) for path, text in text_files() if path.endswith(suffixes) and path not in STORIES]
    return [(path, text) for path, text in ours if not path.startswith(("tests/", "labextension/test/", ".ci/"))]


def clauses(source: str) -> Iterator[str]:
    """Yield the first lines of docstrings, of modules and classes too, that begin with a clause."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].rstrip(",:;.") in CLAUSES:
                yield " ".join(words[:8])


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {path: [*clauses(text)] for path, text in written(".py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_sentences_name_their_subject() -> None:
    found = {path: PRONOUNS.findall(text) for path, text in written(".py", ".ts", ".tsx", ".md")}
    assert {path: words for path, words in found.items() if words} == {}


def test_a_clause_and_a_pronoun_are_found() -> None:
    assert [*clauses('"""What is kept."""\nclass A:\n    """A page."""')] == ["What is kept."]
    assert PRONOUNS.findall("Pages that nobody holds") == ["nobody"]
