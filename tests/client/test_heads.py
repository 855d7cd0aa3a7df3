"""`engine.head_scores` and `session.patterns` against an engine in this process."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import MissingDependency, UsageError

LINE = [9, 8, 7, 21, 9, 8, 7]


def test_heads_are_scored_over_random_tokens_or_prompts(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = engine.head_scores(length=10, samples=2, seed=3)
    assert scores.previous.shape == (3, 4)
    assert scores.counted == {"previous": 38, "duplicate": 20, "induction": 20}
    assert "3 layers x 4 heads: over 2 lines of 10 random tokens, repeated once, seed 3" in repr(scores)
    assert np.array_equal(scores.induction, engine.head_scores(length=10, samples=2, seed=3).induction)
    own = engine.head_scores([LINE])
    assert own.counted == {"previous": 6, "duplicate": 3, "induction": 3}
    layer, head, most = own.top(1, "duplicate")[0]
    assert most == own.duplicate[layer, head] == own.duplicate.max()
    assert own.columns()["duplicate"][layer * 4 + head] == most
    assert [one.name for one in engine.sessions()] == []
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pip install pandas"):
        own.to_pandas()


def test_all_patterns_of_a_line_come_with_its_scores(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    session.run(LINE, max_new_tokens=0)
    patterns = session.patterns()
    assert patterns.values.shape == (3, 4, 7, 7)
    assert np.allclose(patterns.values.sum(-1), 1)
    assert np.allclose(
        patterns.scores.previous, [[h[range(1, 7), range(6)].mean() for h in of] for of in patterns.values]
    )
    assert repr(patterns) == "Patterns of 3 layers x 4 heads over 7 tokens"
    session.close()


def test_what_cannot_be_scored_is_one_sentence(engine: RemoteEngine) -> None:
    with pytest.raises(UsageError, match="two or more tokens"):
        engine.head_scores(length=1)
    with pytest.raises(UsageError, match="larger vocabulary"):
        engine.head_scores(length=10**6)
    with pytest.raises(UsageError, match="no prompts"):
        engine.head_scores([])
    with pytest.raises(UsageError, match="'copying' is none of them"):
        engine.head_scores([LINE]).top(5, "copying")  # type: ignore[arg-type]
