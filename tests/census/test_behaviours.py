"""The list of behaviours: read back as it was written, every claim accounted for, and what is lost is found."""

from __future__ import annotations

import ast

from tests.census import behaviours
from tests.census.behaviours import Claim

KEPT = Claim("tests/wire/test_codec.py", "an array survives", "Of any dtype.")
GONE = Claim("tests/wire/test_codec.py", "a page is freed")
FILE = '''
def test_a_page_is_freed(x):
    """It is free. And more."""
class TestBits:
    async def test_they_are_the_same(self): ...
    def helps(self): ...
TestRing = RingMachine.TestCase
if root():
    def test_of_root_alone(): ...
'''


def test_every_claim_has_its_test_or_says_what_became_of_it() -> None:
    """Renamed, dropped or proven by another: `python -m tests.census.behaviours` says how a line of accounted.txt is
    written."""
    listed = behaviours.read(behaviours.LIST.read_text())
    found = behaviours.compare(listed, behaviours.claims(), behaviours.accounts(behaviours.ACCOUNTED.read_text()))
    assert len(found.kept) > 4000
    assert (found.lost, found.stale) == ([], [])


def test_a_list_is_read_as_it_was_written() -> None:
    claims = {KEPT, GONE, Claim("labextension/test/rows.test.ts", "a row says `x: 2 -> 3` in one sentence")}
    assert set(behaviours.read(behaviours.written(claims))) == claims


def test_a_test_is_read_as_a_claim() -> None:
    assert [*behaviours._claims_of("f", ast.parse(FILE).body)] == [
        Claim("f", "a page is freed", "It is free."),
        Claim("f", "TestBits: they are the same"),
        Claim("f", "TestRing: the rules of RingMachine hold"),
        Claim("f", "of root alone"),
    ]


PAGE = """# Magics
## %djinn_run
| argument | |
| `--seed N` | of sampling |
## dj.Grid
### along
```python
along(
    axis: str,
) -> Grid
```
## Requests
`attach`, `evaluate`
"""


def test_the_names_of_a_page_are_its_headings_rows_lists_and_parameters() -> None:
    assert [one.words for one in behaviours._named("f", PAGE)] == [
        *("%djinn_run", "%djinn_run --seed N", "dj.Grid", "dj.Grid along", "dj.Grid along axis"),
        *("Requests", "Requests attach", "Requests evaluate"),
    ]


def test_a_claim_without_its_test_is_lost() -> None:
    assert behaviours.compare([KEPT, GONE], [KEPT], {}).lost == [GONE.key]


def test_a_claim_that_another_file_proves_has_moved() -> None:
    elsewhere = Claim("tests/memory/test_pages.py", GONE.words)
    assert behaviours.compare([GONE], [elsewhere], {}).moved == [GONE.key]


def test_a_claim_is_accounted_for_by_a_reason_or_by_a_test_that_there_is() -> None:
    text = f"# a comment\n{GONE.key} -> now proven by: tests/wire/test_codec.py::test_an_array_survives\n"
    assert behaviours.compare([GONE], [KEPT], behaviours.accounts(text)).accounted == [GONE.key]
    text = f"{GONE.key} -> dropped: pages are no longer freed by hand\n"
    assert behaviours.compare([GONE], [KEPT], behaviours.accounts(text)).accounted == [GONE.key]
    for says_nothing in ("now proven by: tests/wire/test_codec.py::test_no_such", "dropped: ", "gone"):
        found = behaviours.compare([GONE], [KEPT], behaviours.accounts(f"{GONE.key} -> {says_nothing}\n"))
        assert (found.lost, found.stale) == ([GONE.key], [GONE.key])
