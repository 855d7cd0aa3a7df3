"""Rows of a pass that stopped: they survive forks, swaps of the working copy and other branches, on both sides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.rows import check_invariants
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import IllegalMove
from tests.engine.memory.kv.runs import pair, tokens
from tests.engine.memory.kv.stops import resume, stop_before

pytestmark = pytest.mark.drawn

FAMILIES = "llama mistral gemma3_text deepseek_v3 mamba2 jamba bloom falcon_h1".split()
PROMPT = 40  # three pages of sixteen, so that copying the last one alone is not enough


def attention(family: str) -> str:
    return "eager" if family in ("bloom", "mamba2") else "sdpa"


def edited_branch(family: str, layer: int) -> list[Tensor]:
    """The logits of a prompt stopped and resumed with an edit, and of the steps after, with no other session."""
    alone = pair(family, torch.float32, attention(family)).paged
    hidden = stop_before(alone, tokens(PROMPT), layer)
    return [resume(alone, tokens(PROMPT), layer, 1.5 * hidden), *(alone.step(tokens(1, seed=s)) for s in range(30, 34))]


def stopped_and_forked(family: str, layer: int) -> list[bool]:
    """Stop in the prompt and fork; the parent goes on edited and the fork unedited, in turns; then the parent goes back
    and resumes unedited. Says of each logits whether they are those of a run with no stop, and no other, beside it."""
    both = pair(family, torch.float32, attention(family))
    parent, ids = both.paged, tokens(PROMPT)
    unedited = [both.plain.step(ids), *(both.plain.step(tokens(1, seed=s)) for s in range(40, 44))]
    edited = edited_branch(family, layer)
    hidden = stop_before(parent, ids, layer)
    states = parent.cache.capture_all()
    child = parent.fork()
    same = [torch.equal(resume(parent, ids, layer, 1.5 * hidden), edited[0])]
    child.cache.drop_working()
    same += [torch.equal(resume(child, ids, layer, hidden), unedited[0])]
    for turn in range(1, 5):
        parent.cache.drop_working()
        child.cache.drop_working()
        same += [torch.equal(parent.step(tokens(1, seed=29 + turn)), edited[turn])]
        same += [torch.equal(child.step(tokens(1, seed=39 + turn)), unedited[turn])]
    parent.cache.rewind(0)
    parent.cache.restore_all(states)
    same += [torch.equal(resume(parent, ids, layer, hidden), unedited[0])]
    same += [torch.equal(parent.step(tokens(1, seed=39 + turn)), unedited[turn]) for turn in range(1, 5)]
    check_invariants(both.slabs, [parent.cache, child.cache], contents=True)
    return same


@pytest.mark.parametrize("layer", [1, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_prompt_goes_on_exactly_in_fork_and_parent(family, layer):
    assert stopped_and_forked(family, layer) == [True] * 15


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_step_is_resumed_again_after_an_edited_branch(family):
    both = pair(family, torch.float32, attention(family))
    both.step(tokens(PROMPT))
    ids, cache = tokens(1, seed=2), both.cache
    hidden = stop_before(both.paged, ids, 5)
    cache.drop_working()  # the rows in flight are in the pages
    states = cache.capture_all()
    for scale in (2.0, -1.0):
        resume(both.paged, ids, 5, scale * hidden)
        both.paged.step(tokens(1, seed=3))
        cache.rewind(PROMPT)
        cache.restore_all(states)
    assert torch.equal(resume(both.paged, ids, 5, hidden), both.plain.step(ids))
    both.steps(tokens(4, seed=4))
    check_invariants(both.slabs, [cache], contents=True)


def test_a_pass_enters_at_the_committed_length_only():
    both = pair("llama")
    both.step(tokens(PROMPT))
    for wrong in (0, PROMPT - 1, PROMPT + 1):
        with pytest.raises(IllegalMove, match="Rewind first"):
            both.cache.enter(wrong)
        with pytest.raises(IllegalMove, match="Rewind first"):
            both.cache.reserve(wrong, wrong + 1)
    with pytest.raises(IllegalMove, match="only 40 are committed"):
        both.cache.rewind(PROMPT + 1)
    with pytest.raises(IllegalMove, match="Rewind first"):
        both.cache.truncate(PROMPT - 1)
    both.steps(tokens(2, seed=2))


def test_a_window_remembers_what_the_oldest_kept_stop_needs():
    both = pair("mistral")
    both.step(tokens(PROMPT))
    kept = both.cache.capture_all(), both.plain.fork()
    both.steps(tokens(40, seed=2))
    both.cache.release_behind(oldest_kept=PROMPT)
    assert both.cache.groups[0].table.first == 32
    both.cache.rewind(PROMPT)
    both.plain = kept[1]
    both.steps(tokens(40, seed=3))
    both.cache.release_behind()
    assert both.cache.groups[0].table.first == 64
    with pytest.raises(IllegalMove, match="were given up"):
        both.cache.rewind(PROMPT)
    assert both.cache.length == PROMPT + 40
    both.steps(tokens(3, seed=4))


def test_rows_without_a_reserve_are_refused_and_shared_pages_are_not_written():
    both = pair("llama")
    both.step(tokens(PROMPT))
    child = both.fork()
    cache = both.cache
    cache.enter(PROMPT)
    layer = cache.geometry.layers[0]
    rows = torch.ones(1, layer.kv_heads, 1, layer.key_dim)
    cache.update(rows, rows, 0)
    with pytest.raises(InvariantError, match="belong to another session too"):
        cache.flush()
    child.cache.enter(PROMPT)
    with pytest.raises(InvariantError, match="without a reserve"):
        child.cache.update(rows, rows, 0)
