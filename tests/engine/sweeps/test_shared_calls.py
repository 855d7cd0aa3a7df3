"""The calls of a layer that a sweep's lines share: even ones, and in the last layer calls of all lines' last rows."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from djinn_jupyter.engine.loop.figures import Reservation
from djinn_jupyter.engine.passes import wavefront
from djinn_jupyter.engine.passes.sections import SectionedCall
from djinn_jupyter.engine.passes.wavefront import CallSize, Wavefront
from djinn_jupyter.engine.system.arrays import tensors_within
from tests.engine.desk import desk_of
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values

HEADS = {"site": "z", "over": ("layer", "head")}  # of 4 heads; their lines have 7 rows


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_calls_are_even_and_the_last_rows_of_all_lines_share_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, lines = desk_of(family, layers=LAYERS), defaultdict[int, list[int]](list)
    called = Wavefront._called

    def noted(self: Any, layer: int, portions: Any) -> Any:
        lines[layer].append(sum(one.rows_BnD.shape[0] for one in portions))
        return called(self, layer, portions)

    exact = values(swept(desk, mode="exact", **HEADS))
    swept(desk, **HEADS)  # the family is tried
    monkeypatch.setattr(Wavefront, "_called", noted)
    monkeypatch.setattr(wavefront, "CallSize", partial(CallSize, rows=40))
    monkeypatch.setattr(CallSize, "note", lambda *call: None)
    fast = swept(desk, **HEADS)
    assert fast.mode == "fast"
    assert (values(fast) - exact).abs().max() < 2e-5
    assert lines == {0: [4], 1: [4, 4], 2: [4, 4, 4], 3: [16]}
    desk.close_all()


def test_what_a_call_keeps_between_its_sections_is_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, kept, taken = desk_of("gpt2", layers=LAYERS), list[int](), list[int]()
    step, take = SectionedCall._stepped, Reservation.take

    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = step(self, *args, **kwargs)
        kept.append(sum(tensor.nbytes for tensor in tensors_within(self.outputs)))
        return output

    swept(desk)  # the family is tried
    monkeypatch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would run lines singly
    monkeypatch.setattr(SectionedCall, "_stepped", stepped)
    monkeypatch.setattr(Reservation, "take", lambda room, size: taken.append(size) or take(room, size))
    assert swept(desk).mode == "fast"
    chunk = taken[-1]
    monkeypatch.setattr(Wavefront, "section_bytes", lambda *rows: 0)
    swept(desk)
    assert chunk - taken[-1] >= max(kept)
    most = max(kept)
    kept.clear()
    monkeypatch.setattr(wavefront, "MOST_KEPT", most // 2)
    swept(desk)
    assert max(kept) <= most // 2
    desk.close_all()
