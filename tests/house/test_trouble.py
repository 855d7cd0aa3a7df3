"""Every sentence that docs/trouble.md quotes is one that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "trouble.md"
VARIES = re.compile(
    r"\\\.\\\.\\\.|\bM\b|\bcuda:\d|\b\d+\b|'<s>'"
)  # in a quotation: an ellipsis, a model's name, a number


def quoted(page: str) -> list[str]:
    """Return what stands between backticks in the first column of the page's tables."""
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    return [quotation for cell in cells for quotation in re.findall(r"`([^`]+)`", cell)]


def texts(source: str) -> Iterator[str]:
    """Yield the texts of a program; what is filled in reads as a zero byte."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.JoinedStr():
                yield "".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values)
            case ast.Constant(value=str() as text):
                yield text


def is_said(quotation: str, said: list[str]) -> bool:
    """Return whether a text of the code reads so, with whatever it fills in where the quotation varies."""
    pattern = VARIES.sub(r"[^\\n]*?", re.escape(quotation).replace(r"\ ", " "))
    return any(re.search(pattern, one) for one in said)


@pytest.fixture(scope="module")
def said() -> list[str]:
    ours = [path for folder in ("djinn_jupyter", "evaluation") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [one for path in ours for one in texts(path.read_text("utf-8"))]


def test_every_sentence_that_the_page_quotes_is_said(said: list[str]) -> None:
    found = quoted(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 10
    assert [one for one in found if not is_said(one, said)] == []


def test_a_sentence_that_is_not_said_any_more_is_found(said: list[str]) -> None:
    assert quoted("| it says | `do` |\n| `There was no M of ...` or `no` | `y` |") == ["There was no M of ...", "no"]
    assert is_said("The files of M have changed since this engine loaded them", said)
    assert not is_said("The files of M have been changed since this engine loaded them", said)
