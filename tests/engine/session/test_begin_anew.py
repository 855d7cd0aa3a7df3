"""A line that begins anew computes in the memory in which the earlier one did: a first token does not wait for more."""

from __future__ import annotations

import torch

from djinn_jupyter.engine.memory.kv.pages import WorkingCopy
from tests.engine.desk import Desk, tokens

FIRST, SECOND = tokens(40, seed=1), tokens(24, seed=2)


def memory(desk: Desk) -> list[int]:
    """The addresses of the session's working copies."""
    copies = [group.working for group in desk.session().cache.groups]
    assert all(isinstance(copy, WorkingCopy) for copy in copies)
    return [keys.data_ptr() for copy in copies for keys in copy._keys]


def test_a_line_that_begins_anew_has_the_memory_of_the_earlier_and_its_own_bits(llama: Desk) -> None:
    llama.open("b")
    alone = llama.run(SECOND, name="b")
    llama.open()
    llama.run(FIRST)
    before, lent = memory(llama), llama.engine.budget.lent
    again = llama.run(SECOND)
    assert memory(llama) == before
    assert llama.engine.budget.lent == lent
    assert again.tokens == alone.tokens
    assert torch.equal(llama.logits(), llama.logits("b"))
    llama.engine.check_invariants(contents=True)


def test_a_fork_keeps_its_rows_when_its_line_gives_its_memory_to_the_next(llama: Desk) -> None:
    llama.open()
    llama.run(FIRST)
    llama.fork("b")
    llama.run(SECOND)
    llama.engine.check_invariants(contents=True)
    llama.open("c")
    llama.run(FIRST, name="c")
    for name in ("b", "c"):
        llama.run((5,), name=name, extend=True)
    assert torch.equal(llama.logits("b"), llama.logits("c"))
