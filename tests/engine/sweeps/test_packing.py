"""Packed calls leave transformers' table of attention functions as it was, however a layer ends."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AttentionInterface

from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes.packing import FunctionEntry, attention_as


def own(*args: Any) -> str:
    return "own"


def ours(*args: Any, own: Any) -> str:
    return f"in the place of {own()}"


@pytest.mark.parametrize("ends_by", [Leave, RuntimeError, None])
@pytest.mark.parametrize("listed", [True, False])
def test_the_table_is_as_it_was_however_a_layer_ends(listed: bool, ends_by: type[BaseException] | None) -> None:
    table = AttentionInterface()
    if listed:
        table["flat"] = own
    entry = FunctionEntry(table=table, key="flat", own=own, listed=listed)

    def call() -> None:
        with attention_as([entry], ours):
            assert table["flat"]() == "in the place of own"
            if ends_by is not None:
                raise ends_by

    if ends_by is None:
        call()
    else:
        with pytest.raises(ends_by):
            call()
    assert table.get("flat") is (own if listed else None)
