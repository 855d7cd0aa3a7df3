"""Scores and patterns of heads as cards."""

from __future__ import annotations

from djinn_jupyter.methods.heads.api import HeadPatterns, HeadScores
from djinn_jupyter.methods.heads.card import HEADS, LAYERS, patterns_view, scores_view
from tests.magics.headed import heads_read


def test_scores_have_a_cell_for_each_head_and_name_the_highest() -> None:
    view = scores_view(HeadScores(heads_read(patterns=False), "over 2 prompts"))
    assert view.html.count("title=") == 3 * 6
    assert 'title="1.2: none"' in view.html
    assert view.html.count('style="text-align:center;padding:0">2</th>') == 3
    assert "layers down, heads across" in view.html
    assert "Scores of 2 layers x 3 heads: over 2 prompts" in view.plain
    assert "induction        to what followed these (2 positions)" in view.plain
    assert "1.2 (1.0), 1.1 (0.94)" in view.plain


def test_patterns_have_a_picture_for_each_head() -> None:
    view = patterns_view(HeadPatterns(heads_read(patterns=True), "on this line"), "notes.ipynb")
    assert view.html.count("<img") == 6
    assert 'alt="layer 1, head 2"' in view.html
    assert "session notes" in view.html
    assert "Patterns of 2 layers x 3 heads over 4 tokens" in view.plain


def test_more_than_can_be_drawn_is_cut_and_said() -> None:
    read = heads_read(patterns=True, layers=LAYERS + 2, heads=HEADS + 1)
    patterns = patterns_view(HeadPatterns(read, "on this line"))
    assert patterns.html.count("<img") == LAYERS * HEADS
    for view in (patterns, scores_view(HeadScores(read, "over 2 prompts"))):
        for told in (view.plain, view.html):
            assert f"the first {HEADS} of {HEADS + 1} heads" in told
            assert f"the first {LAYERS // 2} and the last {LAYERS // 2} of {LAYERS + 2} layers" in told
