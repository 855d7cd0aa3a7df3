"""A sweep of chosen cells computes these alone, with the bits that they have among all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import Sweep, SweepProgressed, Swept
from tests.engine.desk import Desk, desk_of, tokens

LAYERS = 3
CORRUPTED = tokens(8)
CLEAN = (*CORRUPTED[:3], *tokens(8, seed=2)[3:])


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def swept(desk: Desk, **fields: Any) -> Any:
    desk.open("a")
    asked = {"corrupted": CORRUPTED, "clean": CLEAN, "site": "resid_post", "over": ("layer", "position")}
    return desk.ask(Sweep(session="a", metrics=("logit(17)", "logit(42)"), **{"mode": "exact", **asked, **fields}))


def values(reply: Any) -> Tensor:
    assert isinstance(reply, Swept), reply
    return torch.stack([to_tensor(one.values) for one in reply.measured]).reshape(2, -1)


@pytest.mark.parametrize("chosen", [(5, 12), (0,), (23, 9, 4, 9)])
def test_chosen_cells_have_the_bits_that_they_have_among_all_and_others_none(
    desk: Desk, chosen: tuple[int, ...]
) -> None:
    every, some = swept(desk), swept(desk, chosen=chosen)
    others = sorted(set(range(LAYERS * 8)) - set(chosen))
    assert torch.equal(values(some)[:, list(chosen)], values(every)[:, list(chosen)])
    assert values(some)[:, others].isnan().all()
    assert some.computed == sum(cell % 8 >= 3 and cell not in (19, 20, 21, 22) for cell in set(chosen))
    assert some.recipe != every.recipe
    assert some.made.asked.chosen == chosen


def test_progress_counts_the_chosen_cells(desk: Desk) -> None:
    desk.events.clear()
    swept(desk, chosen=(5, 12, 0))
    heard = [event for event in desk.events if isinstance(event, SweepProgressed)]
    assert {event.total for event in heard} == {3}
    assert heard[-1].done == 3
    assert sorted(cell for event in heard for cell in event.cells) == [0, 5, 12]


def test_a_pair_of_cells_is_chosen_on_either_side_of_the_diagonal(desk: Desk) -> None:
    fields = {"over": ("layer",), "in_pairs": True}
    every = values(swept(desk, **fields))
    for cell in (1, 3):
        found = values(swept(desk, chosen=(cell,), **fields))
        assert torch.equal(found[:, [1, 3]], every[:, [1, 3]])
        assert found.isnan().sum() == 2 * 7


def test_a_fast_sweep_of_chosen_cells_rechecks_them_alone(desk: Desk) -> None:
    exact, fast = swept(desk, chosen=(5, 12)), swept(desk, chosen=(5, 12), mode="fast")
    assert set(fast.rechecked) == {5, 12}
    assert torch.allclose(values(fast), values(exact), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_cell_that_is_not_there_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError, match="There is no cell 24: this sweep has 24, numbered from 0 row by row"):
        swept(desk, chosen=(24,))
