"""Convolution and recurrent states, taken out and put back: before the first use, after changes, many times."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.system.faults import InvariantError
from tests.engine.memory.kv.runs import pair, tokens

FAMILIES = ["mamba2", "mamba", "jamba", "qwen3_next", "falcon_h1", "lfm2", "zamba2", "nemotron_h", "granitemoehybrid"]
FAMILIES += ["deepseek_v4:sliding", "minimax_m3_vl_text:sparse"]
every_family = pytest.mark.parametrize("family", FAMILIES)


def states_of(cache) -> list[torch.Tensor]:
    return [tensor for state in cache.capture_all().values() for tensor in state.tensors()]


@every_family
def test_a_state_is_put_back_any_number_of_times(family):
    both = pair(family, attention="eager")
    both.step(tokens(20))
    states = both.cache.capture_all()
    frozen = [tensor.clone() for tensor in states_of(both.cache)]
    reference = [both.plain.fork() for _ in range(3)]
    for turn, plain in enumerate(reference):
        both.plain = plain
        both.steps(tokens(4, seed=turn))
        assert any(not torch.equal(a, b) for a, b in zip(states_of(both.cache), frozen, strict=True))
        both.cache.rewind(20)
        both.cache.restore_all(states)
        assert all(torch.equal(a, b) for a, b in zip(states_of(both.cache), frozen, strict=True))
    kept = [tensor for state in states.values() for tensor in state.tensors()]
    assert all(torch.equal(a, b) for a, b in zip(kept, frozen, strict=True))


@every_family
def test_the_state_before_the_first_use_is_one_too(family):
    both = pair(family, attention="eager")
    untouched = both.cache.capture_all()
    assert untouched
    assert all(state.nbytes == 0 for state in untouched.values())
    first = both.paged.step(tokens(20))
    both.cache.rewind(0)
    both.cache.restore_all(untouched)
    assert torch.equal(both.paged.step(tokens(20)), first)
    both.plain.step(tokens(20))
    both.steps(tokens(3, seed=2))


@every_family
def test_a_freed_cache_is_as_good_as_new(family):
    both = pair(family, attention="eager")
    both.step(tokens(20))
    both.cache.free()
    assert both.cache.statistics().device_bytes == 0
    fresh = pair(family, attention="eager")
    both.plain = fresh.plain
    both.step(tokens(20))
    both.steps(tokens(3, seed=2))


def test_attention_layers_have_no_state():
    both = pair("jamba")
    kinds = [layer.kind for layer in both.cache.geometry.layers]
    both.step(tokens(5))
    for index, kind in enumerate(kinds):
        assert (both.cache.capture(index) is None) == (kind == "full")
    state = both.cache.capture(kinds.index("recurrent"))
    with pytest.raises(InvariantError):
        both.cache.restore(kinds.index("full"), state)
    with pytest.raises(InvariantError):
        both.cache.restore(kinds.index("recurrent"), None)


def test_states_are_counted():
    both = pair("mamba2")
    assert both.cache.statistics().recurrent_bytes == 0
    both.step(tokens(5))
    assert both.cache.statistics().recurrent_bytes == both.cache.geometry.recurrent_state_bytes > 0
