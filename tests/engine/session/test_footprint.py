"""The storages of a session are found without asking for the same tensor at every stop that holds it."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import Tensor

from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.session.table import past_tensors, storages_of
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, tokens

OWN_AND_PAST = 2  # a tensor of the present stop is one of the history's too


def test_a_tensor_that_many_stops_hold_is_looked_up_once(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.open()
    for layer in range(4):
        llama.stop_at(f"mlp_out.{layer}")
    llama.run(tokens(6))
    for _ in range(3):
        llama.ask(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)))
        llama.resume()
    session = llama.session()
    held = Counter(id(tensor) for tensor in past_tensors(session))
    assert max(held.values()) > OWN_AND_PAST
    looked_up: Counter[int] = Counter()
    of = StorageTable.of

    def counted(own: StorageTable, tensor: Tensor) -> Storage | None:
        looked_up[id(tensor)] += 1
        return of(own, tensor)

    monkeypatch.setattr(StorageTable, "of", counted)
    session.residence.storages_known = None
    found = storages_of(session, session.storage_table)
    assert set(held) <= set(looked_up)
    assert max(looked_up.values()) <= OWN_AND_PAST
    assert found.past
    llama.close_all()


def test_an_engine_that_never_rests_counts_no_stop_of_an_earlier_line(llama: Desk) -> None:
    llama.open()
    for layer in range(3):
        llama.stop_at(f"mlp_out.{layer}")
    found = list[tuple[int, int]]()
    for _ in range(5):
        llama.run(tokens(7))
        llama.edit(Scale(factor=0.5))
        llama.resume()
        table, taken = llama.engine.storage_table, llama.engine.budget.taken
        found.append((len(list(table)), taken))
    assert found[1:] == [found[1]] * 4
