"""A session goes through a file into another engine with other pages, and the two cannot be told apart."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import build_desk, tokens
from tests.engine.persistence.roundtrip import FAMILIES, Work, carry, future, pair_of, reading, same
from tests.engine.persistence.works import FEWER, WORKS, edited_and_steered
from tests.engine.plain import generate, plain_of
from tests.families import build

pytestmark = pytest.mark.drawn

CASES = [(family, WORKS if family == FAMILIES[0] else FEWER) for family in FAMILIES]
REST = [(family, tuple(work for work in WORKS if work not in FEWER)) for family in FAMILIES[1:]]


@pytest.mark.parametrize(
    ("family", "works"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)],
    ids=lambda one: one if isinstance(one, str) else str(len(one)),
)
def test_a_session_restored_elsewhere_goes_on_bit_for_bit(family: str, works: tuple[Work, ...]) -> None:
    one, other = pair_of(family)
    for work in works:
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


def test_a_stop_comes_back_where_the_residual_is_kept_in_another_dtype_than_the_weights() -> None:
    """Mamba 2 adds up its residual in float32 with weights of any dtype; its embeddings have the weights' dtype."""
    dtype = torch.bfloat16
    desk = build_desk(build("mamba2", dtype=dtype))
    plain = generate(plain_of("mamba2", dtype), tokens(14), 3)
    assert set(desk.engine.forward.anatomy.dtypes) == {dtype, torch.float32}
    for site in ("resid_pre.0", "resid_post.4"):
        desk.open()
        desk.stop_at(site, "step == 1")
        desk.run(tokens(14), 3)
        carry(desk, desk)
        assert desk.outcome(desk.resume()) == plain
    desk.close_all()
