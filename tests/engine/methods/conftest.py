from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.methods.kinds import DTYPES, KINDS, Subject, subject_of

ROUNDED = ("llama", "gemma3_text", "mixtral")  # in bfloat16 too; the others are in the slow run
slow = [pytest.mark.slow]
SUBJECTS = [(kind, dtype) for kind in KINDS for dtype in DTYPES]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((kind, dtype), marks=[] if dtype == "float32" or kind in ROUNDED else slow, id=f"{kind} {dtype}")
        for kind, dtype in SUBJECTS
    ],
)
def made(request: pytest.FixtureRequest) -> Subject:
    """A family in a dtype: all methods of a module are tried on it before the next one is made."""
    return subject_of(*request.param)


@pytest.fixture
def subject(made: Subject) -> Iterator[Subject]:
    yield made
    made.desk.close_all()
