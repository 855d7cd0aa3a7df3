"""A head's page and the parts of a score, as Python asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.heads.engine.page import HeadAttention, HeadWeights
from tests.client import crafted
from tests.client.reached import reached
from tests.engine.desk import build_desk, tokens
from tests.engine.words import tokenizer
from tests.families import build

LINE, OTHER = list(tokens(9)), [5, 9, 5, 9, 9]


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with reached(build_desk(build("llama", layers=3), tokenizer())) as [found]:
        yield found


def test_a_page_has_the_scores_of_all_heads_and_the_heads_rank(engine: RemoteEngine) -> None:
    page, scores = engine.head("2.1", over=[LINE, OTHER]), engine.head_scores()
    assert (page.scores.values == scores.values).all()
    for kind in ("previous", "duplicate", "induction"):
        order = [(layer, head) for layer, head, _ in scores.top(12, kind)]
        assert page.ranks[kind] == (getattr(scores, kind)[2, 1], order.index((2, 1)) + 1, 12)
    assert engine.sessions() == ()


def test_a_page_is_of_the_lines_of_its_examples(engine: RemoteEngine) -> None:
    page = engine.head("2.1", over=[LINE, OTHER], top=3, examples=2)
    session = engine.session("a", fresh=True)
    session.run(OTHER, max_new_tokens=0)
    weights = session.patterns().values[2, 1]
    nines = weights[1, 1] + weights[3, [1, 3]].sum() + weights[4, [1, 3, 4]].sum()
    assert len(page.top(9)) == 3
    assert len(page.examples) == 2
    alone = engine.head("2.1", over=[OTHER], top=100)
    nine = next(one for one in alone.reply.summed if (one.query, one.key) == (9, 9))
    assert nine.summed == pytest.approx(float(nines), abs=1e-5)
    assert nine.count == 6
    session.close()


def test_a_page_with_numbers_that_overflow_comes_back_from_its_file(tmp_path: Path) -> None:
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = 3e38
    with reached(build_desk(model, tokenizer())) as [engine]:
        page = engine.head("2.1", over=[OTHER])
    assert np.isnan(page.values).any()
    read = dj.HeadPage.read(page.save(tmp_path / "a.head.djinn"))
    assert np.array_equal(read.values, page.values, equal_nan=True)
    assert "Head 2.1" in page._repr_mimebundle_()["text/html"]


def test_weights_that_are_no_numbers_are_left_out() -> None:
    weights = HeadWeights(tap=cast(Any, None), head=0)
    attention = HeadAttention(weights, vocabulary=100, examples=3)
    weights.weights_TK = torch.full((5, 5), torch.nan, dtype=torch.float64)
    attention.add(0, (1, 2, 3, 4, 5))
    weights.weights_TK = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.25, 0.25]], dtype=torch.float64)
    attention.add(1, (6, 7, 8))
    attention.pairs.settle()
    assert [(one.line, one.weight) for one in attention.examples] == [(1, 0.75), (1, 0.25), (1, 0.25)]
    assert [(one.query, one.key, one.summed) for one in attention.pairs.top(1, mean=False)] == [(7, 7, 0.75)]


@pytest.mark.parametrize("change", ["head", "weights"])
def test_a_crafted_page_is_refused_before_it_is_drawn(engine: RemoteEngine, tmp_path: Path, change: str) -> None:
    file = engine.head("2.1", over=[LINE, OTHER]).save(tmp_path / "a.head.djinn")
    head, body = crafted.parts(file)
    told = crafted.told(head)
    if change == "head":
        told["reply"]["head"] = 4
    else:
        told["reply"]["examples"][0]["weights"][0] = float("nan")
    crafted.put_told(file, head, body, told)
    with pytest.raises(UsageError, match=r"^a\.head\.djinn is no file of a head's page"):
        dj.HeadPage.read(file)


def test_a_head_that_is_not_there_is_refused_before_others_are_scored(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("djinn_jupyter.methods.heads.api.head_scores", lambda *_, **__: pytest.fail("scored"))
    for name, words in (("3.0", r"There is no head 3\.0: layers 0-2 have patterns, of 4 heads each"), ("0.4", r"0\.4")):
        with pytest.raises(UnknownSite, match=words):
            engine.head(name)
    for name in ("", "5", "5.", ".1", "a.b", "-1.0", "1" * 5000 + ".1"):
        with pytest.raises(UsageError, match=r"such as 5\.1"):
            engine.head(name)


def test_a_score_is_explained_at_a_stop_and_after_a_run(engine: RemoteEngine) -> None:
    session = engine.session("a", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    stopped = session.why("2.1", key=3)
    session.resume()
    finished = session.why("2.1", query=8, key=3)
    assert (stopped.query, stopped.score, stopped.weight) == (8, finished.score, finished.weight)
    assert stopped.weight == pytest.approx(float(session.patterns().values[2, 1, 8, 3]), abs=1e-6)
    for words, given in (
        ("one key position", {"key": [0, 1]}),
        ("one query position", {"key": 0, "query": slice(0, 3)}),
    ):
        with pytest.raises(UsageError, match=words):
            session.why("2.1", **given)
    session.close()


def test_a_score_read_from_a_file_has_the_same_parts(engine: RemoteEngine) -> None:
    session = engine.session("a", fresh=True)
    session.run(LINE, max_new_tokens=0)
    parts = session.why("2.1", key=3)
    read = dj.ScoreParts.from_file(parts.in_file(), "a.why.djinn")
    assert (read.columns(), repr(read)) == (parts.columns(), repr(parts))
    assert dj.reproduce(engine, read).same
    session.close()
