"""The page of decisions is short, and code and documents refer to a decision by its title, which is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.repository import anchor_of, text_files

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
SECTIONS = re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]
TITLES = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
_NUMBER = re.compile(r"\bdecisions? \d+|design\.md(?:#|, )\d+", re.IGNORECASE)
_LINK = re.compile(r"design\.md#([\w-]+)")


def test_the_page_is_short() -> None:
    assert len(PAGE.encode()) <= 60_000
    assert len(set(TITLES)) == len(TITLES) <= 50


def test_every_decision_names_the_alternative_that_lost() -> None:
    decisions = [one for one in SECTIONS if one.splitlines()[0] in TITLES]
    assert len(decisions) == len(TITLES)
    assert [one.splitlines()[0] for one in decisions if "\nRejected: " not in one] == []


def test_a_decision_is_referred_to_by_a_title_that_is_there() -> None:
    anchors = {anchor_of(title) for title in TITLES}
    files = [(path, text) for path, text in text_files() if path != "tests/house/test_design.py"]
    assert {path: found for path, text in files if (found := _NUMBER.findall(text))} == {}
    assert {path: found for path, text in files if (found := {*_LINK.findall(text)} - anchors)} == {}
