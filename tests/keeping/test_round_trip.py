"""A session goes through a file into another engine with other pages, and nobody can tell the two apart."""

from __future__ import annotations

import pytest

from tests.keeping.roundtrip import FAMILIES, carry, future, pair_of, reading, same
from tests.keeping.works import WORKS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_restored_elsewhere_goes_on_bit_for_bit(family: str) -> None:
    one, other = pair_of(family)
    for work in WORKS:
        one.open()
        work(one)
        carry(one, other)
        assert same(reading(one), reading(other)), work.__name__
        assert same(future(one), future(other)), work.__name__
    one.close_all()
    other.close_all()
