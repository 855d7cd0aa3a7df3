"""A session goes through a file into another engine with other pages, and nobody can tell the two apart."""

from __future__ import annotations

import pytest

from djinn_jupyter.wire import requests as ask
from tests.keeping.roundtrip import FAMILIES, carry, future, pair_of, reading, same
from tests.keeping.works import WORKS, edited_and_steered


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


def test_what_was_off_when_it_was_kept_is_turned_on_again_elsewhere() -> None:
    one, other = pair_of("llama")
    one.open()
    edited_and_steered(one)
    carry(one, other)
    off = one.value()
    for desk in (one, other):
        desk.ask(ask.EnableEdit(session="a", number=1, enabled=True))
        desk.ask(ask.EnableRule(session="a", number=1, enabled=True))
    assert not same(one.value(), off)
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))
    one.close_all()
    other.close_all()
