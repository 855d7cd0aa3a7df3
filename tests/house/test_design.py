"""Every design decision has a number of its own, which code and documents may refer to."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
TITLES = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)


def test_every_decision_is_numbered_once_and_no_number_is_left_out() -> None:
    numbers = [int(title.partition(". ")[0]) for title in TITLES]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_decision_is_a_heading_not_a_bold_sentence() -> None:
    body = PAGE.partition("<!-- end of contents -->")[2]
    assert re.findall(r"^(?:- )?\*\*.*", body, re.MULTILINE) == []
    assert re.findall(r"\b(?:Lost|What lost): .*", body) == []


def test_every_decision_names_the_alternative_that_lost() -> None:
    sections = re.split(r"^###? ", PAGE.partition("<!-- end of contents -->")[2], flags=re.MULTILINE)
    decisions = [one for one in sections if re.match(r"\d+\. ", one)]
    assert len(decisions) == len(TITLES)
    assert [one.splitlines()[0] for one in decisions if "\nRejected: " not in one] == []
