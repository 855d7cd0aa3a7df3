from __future__ import annotations

import pytest

from tests.engine.families_report import PAGE, page, row
from tests.engine.test_exact import FAMILIES as FOURTEEN
from tests.families import FAMILIES, MORE, MORE_REFUSED, REFUSED, TOWERS_REFUSED, WITH_TOWERS


def sections() -> tuple[list[str], list[str]]:
    served, _, refused = PAGE.read_text().partition("## Refused")
    return [line for line in served.splitlines() if line.startswith("| ")], refused.splitlines()


def test_none_of_the_fourteen_is_refused() -> None:
    served = {line.split(" | ")[0].removeprefix("| ") for line in sections()[0]}
    assert served >= set(FOURTEEN)


def test_the_page_names_every_family_once() -> None:
    lines = [line for lines in sections() for line in lines if line.startswith("| ")]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    families = [*FAMILIES, *MORE, *REFUSED, *MORE_REFUSED, *WITH_TOWERS, *TOWERS_REFUSED]
    assert sorted(names) == sorted([*families, "family", "family", "family"])


@pytest.mark.parametrize("name", ["llama", "falcon", "jamba", "mpt", "minimax", "rwkv", "llava", "idefics"])
def test_a_row_is_what_an_engine_says_now(name: str) -> None:
    assert row(name)[1] in PAGE.read_text().splitlines()


@pytest.mark.slow
def test_the_page_is_what_engines_say_now() -> None:
    assert page() == PAGE.read_text()
