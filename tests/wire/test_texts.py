"""A text that was given is quoted in a sentence as it is shown, and not at any length."""

from __future__ import annotations

from djinn_jupyter.wire.base import MOST_CHARACTERS, of_person
from djinn_jupyter.wire.request_base import LONGEST_NAME
from djinn_jupyter.wire.texts import LONGEST_QUOTED, in_quotes


def test_a_text_that_is_longer_than_any_name_is_quoted_without_its_middle() -> None:
    quoted = in_quotes(f"begins {'x' * 3000} ends")
    assert quoted.startswith("'begins xxx")
    assert quoted.endswith("xxx ends'")
    assert " ... " in quoted
    assert len(quoted) < LONGEST_QUOTED


def test_a_name_is_quoted_whole() -> None:
    longest = of_person("p" * MOST_CHARACTERS, "x" * LONGEST_NAME)
    assert in_quotes(longest) == f"'{longest}'"
