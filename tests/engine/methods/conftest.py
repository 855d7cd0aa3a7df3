from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.methods.kinds import DTYPES, KINDS, Subject, subject_of

DEEP = ("gemma4_text:shared", "bfloat16")  # of twice as many layers
SUBJECTS = [(kind, dtype) for kind in KINDS for dtype in DTYPES]


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.slow] if one == DEEP else [], id=" ".join(one)) for one in SUBJECTS],
)
def made(request: pytest.FixtureRequest) -> Subject:
    """A family in a dtype: all methods of a module are tried on it before the next one is made."""
    return subject_of(*request.param)


@pytest.fixture
def subject(made: Subject) -> Iterator[Subject]:
    yield made
    made.desk.close_all()
