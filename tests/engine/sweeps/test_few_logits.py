"""A head that computes the logits of a metric's tokens alone has the bits of the whole, or is not used; where its proof
was wrong, the recheck finds that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks import attention
from djinn_jupyter.engine.passes import forward
from tests.engine.desk import Desk, build_desk
from tests.engine.sweeps.test_recheck import falls_back
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values
from tests.families import build

pytestmark = pytest.mark.drawn

Blocks = list[tuple[int, ...]]


def fresh(family: str = "llama", dtype: torch.dtype = torch.float32) -> Desk:
    """Return an engine whose proof no other test has."""
    return build_desk(build(family, dtype=dtype, layers=LAYERS))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """The tokens of the passes whose heads computed no others."""
    found = Blocks()
    head_blocks = forward.head_blocks

    @contextmanager
    def noted(model: Any, tokens: Any) -> Iterator[None]:
        found.append(tuple(tokens))
        with head_blocks(model, tokens):
            yield

    monkeypatch.setattr(forward, "head_blocks", noted)
    return found


def spoil(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    block = attention._block
    monkeypatch.setattr(attention, "_block", lambda *given: change(block(*given)))


def last_bit(logits: Tensor) -> Tensor:
    return torch.nextafter(logits, torch.full_like(logits, torch.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "cohere"])
def test_lines_have_the_bits_of_the_whole_head(family: str, dtype: torch.dtype, narrow: Blocks) -> None:
    desk = fresh(family, dtype)
    exact = swept(desk, mode="exact")
    assert not narrow
    fast, later = swept(desk), swept(desk, pair=1)
    assert len(narrow) == 2 + 2  # both lines, and of a later pair its line and a cell
    for reply in (fast, later):
        assert reply.mode == "fast"
        assert reply.measured[0].corrupted == exact.measured[0].corrupted
    assert fast.measured[0].clean == exact.measured[0].clean
    assert desk.engine.reading.statistics.whole_heads == 0
    desk.close_all()


@pytest.mark.parametrize("metrics", [("prob(17)",), ("logit(17)", "rank(42)")], ids=["prob", "rank"])
def test_a_metric_that_reads_all_logits_has_the_whole_head(metrics: tuple[str, ...], narrow: Blocks) -> None:
    desk = fresh()
    assert swept(desk, metrics=metrics).mode == "fast"
    assert not narrow
    desk.close_all()


def test_a_head_whose_blocks_have_other_bits_computes_all(narrow: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = fresh()
    exact = swept(desk, mode="exact")
    spoil(monkeypatch, last_bit)
    reply = swept(desk)
    assert (reply.mode, reply.measured[0].corrupted) == ("fast", exact.measured[0].corrupted)
    assert not narrow
    desk.settle()
    assert desk.engine.reading.statistics.whole_heads == 1
    desk.close_all()


def test_a_bit_that_the_proof_did_not_see_is_found_by_a_cell_that_was_left_out(
    narrow: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = fresh()
    exact = swept(desk, mode="exact")
    swept(desk)  # proves it
    spoil(monkeypatch, last_bit)
    reply = swept(desk)
    falls_back(reply, values(exact))
    assert (reply.measured[0].corrupted, reply.measured[0].clean) == (
        exact.measured[0].corrupted,
        exact.measured[0].clean,
    )
    narrow.clear()
    assert swept(desk).mode == "fast"
    assert not narrow  # distrusted from here on
    desk.close_all()


@pytest.mark.parametrize("pair", [0, 1])
def test_logits_of_other_tokens_are_found_and_every_value_read_again(
    pair: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = fresh()
    exact = swept(desk, mode="exact")
    swept(desk)
    spoil(monkeypatch, lambda logits: logits.roll(1, -1))
    reply = swept(desk, pair=pair)
    falls_back(reply, values(exact))
    assert (reply.measured[0].corrupted, reply.measured[0].clean) == (
        exact.measured[0].corrupted,
        exact.measured[0].clean,
    )
    desk.close_all()
