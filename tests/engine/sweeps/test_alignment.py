"""Positions by name, and lines of unequal length patched where their names say what corresponds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.sweep.engine.places import SweptLine, aligned, chosen_positions
from djinn_jupyter.methods.sweep.request import Noise, Resample
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import CORRUPTED, GRID, LAYERS, swept, values

LONGER = (*CORRUPTED[:4], 99, 98, *CORRUPTED[6:], 97)  # two others in the middle, one more at the end


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def named(desk: Desk, token: int) -> str:
    return desk.engine.runtime.tokenizer.text_of(token)


def test_without_an_axis_of_positions_the_named_ones_are_edited_together(desk: Desk) -> None:
    together = swept(desk, site="z.1", over=("head",), positions=(2, -1), edit=Zero(), clean=None, mode="exact")
    window = {"windows": (("position", 2),), "over": ("head", "position")}
    asked = {"site": "z.1", "positions": (2, -1), "edit": Zero(), "clean": None, "mode": "exact"}
    assert torch.equal(values(together), values(swept(desk, **asked, **window))[:, 0])


def test_positions_are_named_by_number_or_text(desk: Desk) -> None:
    everywhere = values(swept(desk, mode="exact"))
    text = named(desk, CORRUPTED[7])
    reply = swept(desk, positions=(-1, 2, text), mode="exact")
    assert reply.places[1] == (2, 7, 11)
    assert torch.equal(values(reply), everywhere[:, [2, 7, 11]])
    aligned = swept(desk, clean=LONGER, align=((text, text), (-1, -1)), edit=Resample(), mode="exact")
    assert aligned.places[1] == (7, 11)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"positions": (12,)}, "Position 12 is not in the corrupted line, which has 12 tokens"),
        ({"positions": ("nowhere",)}, "No token of the corrupted line reads 'nowhere'. Its tokens are: "),
        ({"clean": LONGER}, "The clean line has 13 tokens and the corrupted one 12, .*, with align"),
        ({"clean": LONGER, "align": ((0, 13),)}, "Position 13 is not in the clean line"),
        ({"clean": LONGER, "align": ((0, 0), (0, 1))}, "Position 0 of the corrupted line is aligned with 0 and with 1"),
        ({"align": ((0, 0),), "positions": (1,)}, "leave positions and noise out"),
        ({"align": ((0, 0),), "noise": Noise(positions=(1,))}, "leave positions and noise out"),
        ({"align": ((0, 0),), "clean": None, "edit": Zero()}, "of a clean and a corrupted line"),
        ({"clean": LONGER, "align": ((0, 0),), "over": GRID, "site": "pattern"}, "cannot be|edited"),
    ],
)
def test_what_does_not_correspond_is_refused_in_a_sentence(desk: Desk, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DjinnError, match=said):
        swept(desk, **fields)


class Counting:
    """A tokenizer that counts the texts that it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def text_of(self, token: int) -> str:
        self.asked += 1
        return f" {token}"


def test_each_token_is_spelled_once_however_many_names_there_are() -> None:
    texts: Any = Counting()
    line, other = (SweptLine(name=name, tokens=tuple(range(50)), tokenizer=texts) for name in ("one", "other"))
    found = aligned(line, other, [(str(at), str(at)) for at in range(50)] * 20)
    assert found.rows == found.others == tuple(range(50))
    assert chosen_positions(line, [f" {at}" for at in range(50)] * 20).rows == found.rows
    assert texts.asked == 2 * 50
