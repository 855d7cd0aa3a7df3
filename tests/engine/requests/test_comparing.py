"""Two stopped values are compared over all of their numbers: numpy finds the same of the whole arrays, to the last
bit."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from djinn_jupyter.engine.requests import figures
from djinn_jupyter.engine.requests.inspection import apart
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import IllegalMove, UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.readings import Apart, Compared
from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, tokens
from tests.engine.requests.test_pooling import values
from tests.widgets import compared as plainly


def numbers(value: Tensor) -> np.ndarray[Any, Any]:
    return value.double().numpy()


def require_same(found: Apart, expected: Apart) -> None:
    """The counts, the place and the numbers there are equal; the sums of the distances are but for their order."""
    for name in ("positions", "numbers", "differing", "not_finite", "largest"):
        assert getattr(found, name) == getattr(expected, name), name
    for one, other in zip(found.distances, expected.distances, strict=True):
        assert one == other if one is None or other is None else np.isclose(one, other, rtol=1e-12, atol=0)


@given(
    a=values(),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([0.0, 1e-7, 1.0, float("inf")]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    chunk=st.sampled_from([1, 7, 2**22]),
)
@example(a=torch.zeros(3, 2), seed=0, scale=0.0, dtype=torch.float32, chunk=1)
@example(a=torch.zeros(3, 2), seed=0, scale=float("inf"), dtype=torch.bfloat16, chunk=1)
def test_two_values_are_compared_as_numpy_compares_the_whole(
    a: Tensor, seed: int, scale: float, dtype: torch.dtype, chunk: int
) -> None:
    noise = torch.randint(0, 2, a.shape, generator=torch.Generator().manual_seed(seed)).double()
    b = torch.where(noise == 0, a.double(), a.double() + scale).to(dtype)
    positions = tuple(range(7, 7 + len(a)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "CHUNK", chunk)
        found = apart(a, b, positions, 4)
    require_same(found, plainly.apart(numbers(a), numbers(b), positions, 4))


@pytest.fixture
def desk(llama: Desk) -> Desk:
    return llama


def stopped_pair(desk: Desk, site: str = "resid_post.4", lengths: tuple[int, int] = (40, 40)) -> None:
    for seed, (name, length) in enumerate(zip("ab", lengths, strict=True)):
        desk.open(name)
        desk.stop_at(site, name=name)
        desk.run(tokens(length, seed=seed + 1), name=name)


def value_of(desk: Desk, name: str) -> Tensor:
    return to_tensor(desk.ask(ask.Inspect(session=name)).snapshot.value)


def compare(desk: Desk, **given: Any) -> Compared:
    return desk.ask(ask.Compare(session="a", other="b", **given))


@pytest.mark.parametrize("site", ["resid_post.4", "z.3", "mlp_post.2", "z.3[2,1]", "mlp_post.2[6]"])
@pytest.mark.parametrize("lengths", [(40, 40), (40, 33)])
def test_stops_are_compared_at_the_positions_that_both_have(desk: Desk, site: str, lengths: tuple[int, int]) -> None:
    stopped_pair(desk, site, lengths)
    a, b = (value_of(desk, name)[: min(lengths)] for name in "ab")
    found = compare(desk, last=5)
    assert found.site == site
    assert found.shapes == ((lengths[0], *a.shape[1:]), (lengths[1], *b.shape[1:]))
    largest = found.apart.largest
    assert largest is not None
    selector = parse_site(site).selector
    index = largest.index if selector is None else (selector.index(largest.index[0]), *largest.index[1:])
    assert largest.b == float(b[(largest.position, *index)])
    same = msgspec.structs.replace(found.apart, largest=msgspec.structs.replace(largest, index=index))
    require_same(same, plainly.apart(numbers(a), numbers(b), None, 5))


def test_a_fork_is_equal_until_it_is_edited_and_then_differs_where_it_was(desk: Desk) -> None:
    desk.open()
    desk.stop_at("resid_post.4")
    desk.run(tokens(40))
    desk.ask(ask.Fork(session="a", name="b"))
    same = compare(desk).apart
    assert (same.differing, same.largest) == (0, None)
    assert set(same.distances) == {0.0}
    desk.edit(name="b")
    edited = compare(desk)
    a, b = (value_of(desk, name) for name in "ab")
    assert edited.stops[1].edition > edited.stops[0].edition
    require_same(edited.apart, plainly.apart(numbers(a), numbers(b)))
    assert edited.apart.differing


def test_stops_that_cannot_be_compared_say_why(desk: Desk) -> None:
    stopped_pair(desk)
    desk.ask(ask.Step(session="b"))
    with pytest.raises(UsageError, match=r"'a' stands at resid_post\.4 and 'b' at resid_post\.5"):
        compare(desk)
    with pytest.raises(UnknownSession):
        desk.ask(ask.Compare(session="a", other="nobody"))
    desk.open("c")
    with pytest.raises(IllegalMove, match="no forward pass is stopped"):
        desk.ask(ask.Compare(session="a", other="c"))


def test_a_pattern_of_a_longer_pass_has_other_shapes(desk: Desk) -> None:
    for name in "ab":
        desk.open(name)
        desk.ask(ask.SetAttention(session=name, attention="eager"))
    for seed, (name, length) in enumerate((("a", 40), ("b", 33))):
        desk.stop_at("pattern.3", name=name)
        desk.run(tokens(length, seed=seed), name=name)
    found = compare(desk)
    assert found.apart is None
    assert found.shapes == ((40, 4, 40), (33, 4, 33))


def test_a_session_that_has_left_the_device_is_brought_back(desk: Desk) -> None:
    stopped_pair(desk)
    expected = compare(desk)
    desk.ask(ask.SwapOut(session="b", tier="host"))
    assert not desk.session("b").residence.present
    assert compare(desk) == expected
