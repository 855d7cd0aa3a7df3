"""Each cell of the table in docs/front_ends.md: the front end runs, and the display is what the cell says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.front_ends.front_ends import FRONT_ENDS, KINDS, Shown
from tests.front_ends.lines import form
from tests.front_ends.table import PAGES, TABLE

pytestmark = pytest.mark.processes
INSTALLED_BESIDE = ("`jupyter console`", "papermill", "nbclient and pandoc", "marimo")  # by `make front-ends`


def test_the_table_has_each_front_end_and_each_kind() -> None:
    assert set(TABLE) == {*FRONT_ENDS, *PAGES}
    assert all(tuple(row) == KINDS for row in TABLE.values())
    assert {cell for row in TABLE.values() for cell in row.values()} == {
        "card",
        "chart, then figure",
        "figure",
        "no magics",
        "one line",
        "text",
        "traceback",
    }


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shown]:
    """A call that runs a front end once."""
    return cache(lambda name: FRONT_ENDS[name](tmp_path_factory.mktemp("front")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] if one in INSTALLED_BESIDE else []) for one in FRONT_ENDS]
)
def test_a_front_end_shows(shown: Callable[[str], Shown], name: str, kind: str) -> None:
    found = shown(name)
    assert (form(kind, found[kind]) if kind in found else "no magics") == TABLE[name][kind]
