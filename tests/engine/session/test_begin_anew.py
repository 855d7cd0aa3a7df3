"""Lines that begin anew: in the memory of the earlier ones, with a first token twice, and the storages that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.engine.memory.kv.pages import WorkingCopy
from djinn_jupyter.engine.memory.offload.swappable import Storage, StorageTable
from djinn_jupyter.engine.session.table import past_tensors, storages_of
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, build_desk, tokens
from tests.families import VOCAB, build
from tests.threads import one_thread

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


# --- a first token twice ----------------------------------------------------------------------------------------------


NOTE = (
    "The line begins with '<s>' twice: the tokenizer adds one to a text, also where the text has one. Leave it out of "
    "the text, or give token ids."
)

CLOSED = (
    "The prompt ends with '</s>', which the tokenizer adds behind a text: the last position is that token's, and the "
    "model goes on behind it. Give token ids without it to go on from the text."
)


def wrapping(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that puts these tokens around a text."""
    inner = Tokenizer(
        models.WordLevel(
            {"<s>": 0, "a": 1, "</s>": 3, **{f"w{n}": n for n in range(2, VOCAB) if n != 3}}, unk_token="w2"
        )
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


@pytest.fixture(scope="module")
def wrapped() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=2), wrapping("<s> $A"))


@pytest.mark.parametrize(
    ("text", "tokens", "note"),
    [("w5 w6", (0, 5, 6), None), ("<s> w5 w6", (0, 0, 5, 6), NOTE), ("w5 <s> <s>", (0, 5, 0, 0), None)],
)
def test_a_run_says_so_and_computes_the_line_as_it_is(
    wrapped: Desk, text: str, tokens: tuple[int, ...], note: str | None
) -> None:
    wrapped.open()
    done = wrapped.ask(ask.Run(session="a", text=text, max_new_tokens=2))
    assert (done.prompt_tokens, done.note) == (tokens, note)
    assert wrapped.ask(ask.Run(session="a", text="w7", extend=True, max_new_tokens=1)).note is None  # once
    wrapped.open("b")
    given = wrapped.ask(ask.Run(session="b", tokens=tokens, max_new_tokens=2))
    assert (given.top, given.tokens, given.log_probabilities) == (done.top, done.tokens, done.log_probabilities)


def test_a_text_that_is_run_again_is_told(wrapped: Desk) -> None:
    wrapped.open()
    done = wrapped.ask(ask.Run(session="a", text="w5", max_new_tokens=2))
    again = wrapped.ask(ask.Run(session="a", text=done.prompt_text + done.text, max_new_tokens=0))
    assert (again.prompt_tokens[:3], again.note) == ((0, 0, 5), NOTE)
    fast = wrapped.ask(ask.Run(session="a", text="<s> w5", max_new_tokens=1, mode="fast"))
    assert fast.note.startswith(NOTE)


def test_a_prompt_that_ends_with_what_the_tokenizer_adds_is_told() -> None:
    wrapped = build_desk(build("llama", layers=2), wrapping("<s> $A </s>"))
    wrapped.open()
    done = wrapped.ask(ask.Run(session="a", text="w5 w6", max_new_tokens=2, ignore_eos=True))
    assert (done.prompt_tokens, done.note) == ((0, 5, 6, 3), CLOSED)
    wrapped.open("b")
    assert wrapped.ask(ask.Run(session="b", tokens=(0, 5, 6), max_new_tokens=2, ignore_eos=True)).note is None


# --- storages ---------------------------------------------------------------------------------------------------------


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
