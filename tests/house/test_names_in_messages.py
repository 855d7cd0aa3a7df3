"""Names in messages: `in_quotes` writes them, so that a name with a backslash is read as it was given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from djinn_jupyter.wire.texts import in_quotes

PACKAGE = Path(__file__).parents[2] / "djinn_jupyter"
BY_REPR = re.compile(r"\b(?:[Ss]ession|[Cc]heckpoint|file) \{[^{}]*!r\}|\b(?:session|there)\.(?:name|label)!r\}")


def test_no_name_of_a_session_or_file_is_written_by_repr() -> None:
    found = {path.name: BY_REPR.findall(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_name_by_repr_is_found() -> None:
    assert BY_REPR.search('f"Session {self.session.label!r} runs"')
    assert BY_REPR.search('f"{session.name!r}"')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paris", "'paris'"),
        ("C:\\trips", "'C:\\trips'"),
        ("it's", '"it\'s"'),
        ("a\nb", r"'a\nb'"),
        ("\u202eabc", r"'\u202eabc'"),
        ("日本", "'日本'"),
    ],
)
def test_a_name_is_quoted_as_it_is_shown(name: str, text: str) -> None:
    assert in_quotes(name) == text
