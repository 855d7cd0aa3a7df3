"""On pages every family gives the bits it gives on transformers' own cache: logits, and those of the steps after."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import check_invariants
from tests.engine.memory.kv.runs import pair, tokens
from tests.engine.memory.kv.small import build_working
from tests.families import enough_layers

pytestmark = pytest.mark.drawn

FAMILIES = (
    "llama gpt2 mistral gemma3_text phi3 deepseek_v3 mamba2 jamba qwen3_next bloom falcon opt gpt_neox qwen3 mixtral"
).split()
MORE = "falcon_h1 falcon:new falcon:alibi gpt_oss llama4_text gemma3n_text lfm2 granitemoehybrid mamba cohere2".split()
AS_OTHERS = {"phi3", "opt", "gpt_neox", "qwen3", "falcon"}  # of layers and caches that others have; in the slow run
WITHOUT_SDPA = {"bloom", "mamba2"}
VARIANTS = [
    pytest.param(family, dtype, attention, id=f"{family}-{str(dtype)[6:]}-{attention}")
    for family in FAMILIES
    for dtype in (torch.float32, torch.bfloat16)
    for attention in (("eager",) if family in WITHOUT_SDPA else ("sdpa", "eager"))
] + [pytest.param(family, torch.bfloat16, "eager", id=f"{family}-bfloat16-eager") for family in MORE]
# The usual run has each family in one dtype under each kind of attention.
CROSSED = [
    one
    if one.values[0] not in AS_OTHERS
    and (
        (one.values[1:] != (torch.bfloat16, "sdpa") and one.values[1:] != (torch.float32, "eager"))
        or one.values[0] in ("llama", "jamba", *WITHOUT_SDPA)
    )
    else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
    for one in VARIANTS
]
each_variant = pytest.mark.parametrize(("family", "dtype", "attention"), CROSSED)

PROMPT = 21  # past the windows of 8 and into a second page


@each_variant
def test_prefill_a_second_chunk_and_steps_are_bitwise_equal(family, dtype, attention):
    both = pair(family, dtype, attention, layers=enough_layers(family))
    both.step(tokens(PROMPT))
    both.steps(tokens(6, seed=2))
    both.step(tokens(5, seed=3))
    both.cache.release_behind()
    both.steps(tokens(7, seed=4))
    check_invariants(both.slabs, [both.cache], contents=True)


@each_variant
def test_a_fork_and_its_parent_go_their_own_ways(family, dtype, attention):
    parent = pair(family, dtype, attention, layers=enough_layers(family))
    parent.step(tokens(PROMPT))
    child = parent.fork()
    grandchild = child.fork()
    for turn in range(6):
        parent.step(tokens(1, seed=10 + turn))
        child.step(tokens(1, seed=20 + turn))
    grandchild.steps(tokens(6, seed=5))
    check_invariants(parent.slabs, [parent.cache, child.cache, grandchild.cache], contents=True)
    child.cache.free()
    parent.steps(tokens(3, seed=6))
    parent.cache.free()
    grandchild.cache.free()
    check_invariants(parent.slabs, [parent.cache])
    assert all(slab.pages_in_use == 0 for slab in parent.slabs)


@each_variant
def test_the_working_copy_may_go_and_come_at_any_step(family, dtype, attention):
    both = pair(family, dtype, attention, layers=enough_layers(family))
    both.step(tokens(PROMPT))
    for turn in range(8):
        if turn in (1, 2, 5):
            both.cache.drop_working()
            assert both.cache.working_bytes == 0
        if turn == 5:
            build_working(both.cache)
        both.step(tokens(1, seed=10 + turn))
    check_invariants(both.slabs, [both.cache], contents=True)


@each_variant
def test_without_room_for_a_working_copy_the_bits_are_the_same(family, dtype, attention, monkeypatch):
    both = pair(family, dtype, attention, layers=enough_layers(family))
    for group in both.cache.groups:
        monkeypatch.setattr(group, "prepare", lambda start, end, once=False: None)
    both.step(tokens(PROMPT))
    both.steps(tokens(4, seed=2))
    both.step(tokens(5, seed=3))
    both.steps(tokens(3, seed=4))
    assert both.cache.working_bytes == 0


@each_variant
def test_positions_run_again_after_a_rewind(family, dtype, attention):
    both = pair(family, dtype, attention, layers=enough_layers(family))
    both.step(tokens(PROMPT))
    before = both.plain.fork()
    states = both.cache.capture_all()
    first = both.paged.step(tokens(1, seed=2))
    after = [both.paged.step(tokens(1, seed=3 + turn)) for turn in range(6)]
    for other in (9, 2):  # another continuation, then the first again
        both.cache.rewind(PROMPT)
        both.cache.restore_all(states)
        if other == 9:
            again = before.fork()
            for turn in range(6):
                ids = tokens(1, seed=40 + turn)
                assert torch.equal(both.paged.step(ids), again.step(ids))
    assert torch.equal(both.paged.step(tokens(1, seed=2)), first)
    for turn, expected in enumerate(after):
        assert torch.equal(both.paged.step(tokens(1, seed=3 + turn)), expected)
    check_invariants(both.slabs, [both.cache], contents=True)


def test_the_cache_says_of_itself_what_a_dynamic_cache_says():
    for family in ("llama", "gemma3_text", "deepseek_v3", "mamba2", "jamba", "falcon_h1", "lfm2", "gpt_oss"):
        both = pair(family, torch.float32, "eager")
        for count in (PROMPT, 1, 1):
            ours, theirs = both.cache, both.plain.cache
            assert len(ours) == len(theirs)
            assert ours.is_sliding == theirs.is_sliding
            assert ours.is_linear == theirs.is_linear
            assert ours.is_compileable == theirs.is_compileable
            assert ours.is_initialized == theirs.is_initialized
            for mine, other in zip(ours.layers, theirs.layers, strict=True):
                assert isinstance(mine, type(other))
                if hasattr(other, "get_mask_sizes"):
                    assert mine.get_seq_length() == other.get_seq_length()
                    assert mine.get_mask_sizes(3) == other.get_mask_sizes(3)
            both.step(tokens(count))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_inference_mode_may_come_and_go(family):
    both = pair(family)
    with torch.inference_mode():
        both.step(tokens(PROMPT))
    both.steps(tokens(3, seed=2))
    both.cache.drop_working()
    with torch.inference_mode():
        child = both.fork()
        both.steps(tokens(3, seed=3))
    child.steps(tokens(3, seed=4))
    check_invariants(both.slabs, [both.cache, child.cache], contents=True)


class ForgetsTheStates(PagedCache):
    """Broken on purpose: a fork shares the recurrent states."""

    def fork(self):
        twin = super().fork()
        for mine, other in zip(self.layers, twin.layers, strict=True):
            if hasattr(mine, "recurrent_states"):
                other.conv_states, other.recurrent_states = mine.conv_states, mine.recurrent_states
        return twin


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next"])
def test_a_fork_that_shares_recurrent_states_is_caught(family):
    parent = pair(family, torch.float32, "eager")
    parent.paged.cache.__class__ = ForgetsTheStates
    parent.step(tokens(PROMPT))
    child = parent.fork()
    parent.step(tokens(1, seed=2))
    with pytest.raises(AssertionError, match="at 22"):
        child.step(tokens(1, seed=3))
