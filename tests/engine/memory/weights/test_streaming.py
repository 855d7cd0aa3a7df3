"""A model whose layers stream answers bit for bit as one that is all there, and moves as many bytes as it says."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.weights import streamed as streamed_weights
from djinn_jupyter.engine.memory.weights.copy_engine import ArrivedCopies, BlockCopy
from djinn_jupyter.engine.memory.weights.host_weights import ALIGNMENT
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.memory.weights.streaming import arrive, moved_by, streamed, streamed_desk

pytestmark = pytest.mark.drawn

FAMILIES = (
    "llama gpt2 mistral qwen3 gemma3_text phi3 mixtral gpt_neox opt falcon bloom deepseek_v3 mamba2 jamba".split()
)
PROMPT = tokens(24)
LAYERS = 5  # more than twice the slots
SITES = ("resid_pre.1", "resid_post.2", "resid_post.4")


@pytest.fixture(scope="module")
def llama() -> Iterator[Desk]:
    desk = streamed_desk("llama")
    yield desk
    desk.close_all()


@functools.lru_cache(maxsize=2)
def tour(family: str, *, streams: bool, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Return the replies of runs, stops, an edit, a step back and a fork."""
    build = streamed_desk if streams else desk_of
    desk = build(family, dtype=dtype, layers=LAYERS)
    desk.close_all()
    desk.open()
    came: list[Any] = [desk.outcome(desk.run(PROMPT, 3)), desk.outcome(desk.run(tokens(9, seed=3), 4))]
    for site in SITES:
        desk.open()
        desk.stop_at(site, when="step == 1")
        desk.run(PROMPT, 3)
        came.append(desk.value())
        desk.fork("b")
        desk.edit()
        came.append(desk.outcome(desk.resume()))
        came.append(desk.outcome(desk.resume("b"), "b"))
        desk.back()
        came.append(desk.outcome(desk.resume(free=True)))
        desk.close("b")
    desk.stop_at("resid_post.3")
    desk.run(PROMPT, 3)
    desk.back(2, by="layer")
    came.append(desk.value())
    desk.step(2)
    came.extend((desk.value(), desk.outcome(desk.resume(free=True))))
    desk.close_all()
    return came


USUAL = ("llama", "gpt2", "gemma3_text", "mixtral", "falcon", "deepseek_v3", "mamba2", "jamba")
OTHERS = [pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES if family not in USUAL]


@pytest.mark.parametrize("family", [*USUAL, *OTHERS])
def test_every_family_answers_bit_for_bit(family: str) -> None:
    for streaming, resident in zip(tour(family, streams=True), tour(family, streams=False), strict=True):
        same = torch.equal(streaming, resident) if isinstance(resident, torch.Tensor) else streaming == resident
        assert same


def test_half_precision_answers_bit_for_bit() -> None:
    kind = torch.bfloat16
    pairs = zip(tour("llama", streams=True, dtype=kind), tour("llama", streams=False, dtype=kind), strict=True)
    for streaming, resident in pairs:
        assert torch.equal(streaming, resident) if isinstance(resident, torch.Tensor) else streaming == resident


@pytest.mark.parametrize(("streaming", "slots"), [(None, 3), ((1, 3, 5, 7), 2)])
def test_a_pass_moves_exactly_the_streamed_bytes(streaming: tuple[int, ...] | None, slots: int) -> None:
    desk = streamed_desk("llama", streaming, slots)
    desk.open()
    desk.run(PROMPT, 1)
    layers = range(8) if streaming is None else streaming
    weights = [p.numel() * 4 for layer in layers for p in desk.engine.anatomy.layers[layer].parameters()]
    expected = streamed(desk).bytes_per_pass
    assert expected == streamed(desk).statistics().bytes_streamed_per_pass
    assert 0 <= expected - sum(weights) <= gaps(len(weights))
    for passes in (1, 5, 2):
        assert moved_by(desk, lambda passes=passes: desk.run(PROMPT, passes)) == passes * expected
    desk.close_all()


def gaps(weights: int) -> int:
    """The most bytes between so many weights that cross with them: a GPU's layer is one copy, gaps included."""
    return weights * (ALIGNMENT - 1) if DEVICE.type == "cuda" else 0


def test_a_stop_fetches_nothing_that_is_there(llama: Desk) -> None:
    """A run to the stop and from there to the end is one pass over the weights, and the layer of the stop is not
    lost."""
    llama.open()
    llama.run(PROMPT, 1)
    llama.stop_at("resid_post.3", when="step == 0")
    whole = streamed(llama).bytes_per_pass
    assert moved_by(llama, lambda: (llama.run(PROMPT, 1), llama.resume())) == whole


def test_a_jump_fetches_what_it_needs(llama: Desk) -> None:
    llama.open()
    plain = llama.outcome(llama.run(PROMPT, 1))
    llama.stop_at("resid_post.5")
    llama.run(PROMPT, 1)
    late = streamed(llama).ring.late
    llama.back(4, by="layer")
    assert streamed(llama).ring.late > late
    llama.clear()
    assert llama.outcome(llama.resume()) == plain


def test_the_order_is_learned_from_what_ran_and_then_every_layer_comes_ahead(llama: Desk) -> None:
    assert streamed(llama).ring.order.learned == tuple(range(8))
    llama.open()
    llama.run(PROMPT, 1)
    late = streamed(llama).ring.late
    llama.run(PROMPT, 6)
    assert streamed(llama).ring.late == late


def test_a_layer_that_is_away_holds_nothing(llama: Desk) -> None:
    for layer in llama.engine.anatomy.layers:
        for parameter in layer.parameters():
            assert parameter.isnan().all()
            assert parameter.untyped_storage().nbytes() == parameter.element_size()
    held = streamed(llama).statistics()
    assert held.bytes_on_device < 0.6 * held.bytes_total


def test_tied_weights_and_buffers_are_moved_once() -> None:
    """gpt2's head is its embedding, and its attention has masks that are buffers."""
    desk = streamed_desk("gpt2")
    assert desk.engine.model.lm_head.weight is desk.engine.model.transformer.wte.weight
    where = {name: buffer.data_ptr() for name, buffer in desk.engine.model.named_buffers()}
    desk.open()
    desk.run(PROMPT, 3)
    assert {name: buffer.data_ptr() for name, buffer in desk.engine.model.named_buffers()} == where


def test_what_layers_share_stays() -> None:
    """zamba2's hybrid layers run one and the same block."""
    desk = streamed_desk("zamba2")
    resident = desk_of("zamba2")
    for each in (desk, resident):
        each.open()
    assert desk.outcome(desk.run(PROMPT, 4)) == resident.outcome(resident.run(PROMPT, 4))
    whole = sum(p.numel() * 4 for p in desk.engine.model.parameters())
    assert 0 < streamed(desk).bytes_per_pass < whole
    resident.close_all()


def test_the_books_show_the_ring(llama: Desk) -> None:
    llama.open()
    before = streamed(llama).statistics().layer_copies
    llama.stop_at("resid_post.3")
    llama.run(PROMPT, 1)
    held = streamed(llama).statistics()
    assert sorted(slot.layer for slot in held.ring) == [4, 5], "those that come next"
    assert all(slot.generation > 0 and not slot.computing for slot in held.ring)
    assert held.layer_copies - before in (4, 5, 6), "of the six, the first two may have been there"
    assert held.layers_streamed == 8
    assert sum(slot.bytes_allocated for slot in held.ring) == streamed(llama).ring.slot_bytes
    llama.ask(ask.Sleep())
    assert streamed(llama).statistics().ring == ()
    llama.clear()


def test_a_pass_begins_with_a_layer_in_every_slot(llama: Desk) -> None:
    """Between two runs the link was idle with one slot filled; a run moves as many bytes as before."""
    llama.open()
    expected = llama.outcome(llama.run(PROMPT, 2))
    assert sorted(slot.layer for slot in streamed(llama).statistics().ring) == [0, 1]
    late = streamed(llama).ring.late
    assert moved_by(llama, lambda: llama.run(PROMPT, 2)) == 2 * streamed(llama).bytes_per_pass
    assert streamed(llama).ring.late == late
    llama.open()
    assert llama.outcome(llama.run(PROMPT, 2)) == expected


def test_sleep_costs_nothing_and_the_next_run_wakes(llama: Desk) -> None:
    llama.open()
    plain = llama.outcome(llama.run(PROMPT, 3))
    moved = moved_by(llama, lambda: llama.ask(ask.Sleep()))
    assert moved == 0
    asleep = streamed(llama).statistics()
    assert (asleep.residency, asleep.bytes_on_device < asleep.bytes_total / 50) == ("asleep", True)
    assert llama.outcome(llama.run(PROMPT, 3)) == plain
    assert streamed(llama).statistics().residency == "streamed"


def test_the_experts_that_were_used_are_counted(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes two of four experts in a mixture; a dense model says nothing."""
    monkeypatch.setattr(streamed_weights, "USED_SECONDS", 0.0)  # a GPU is asked at most once in so many
    desk = streamed_desk("mixtral", layers=LAYERS)
    desk.open()
    desk.run(PROMPT[:1], 40)
    expert = sum(p.numel() for name, p in desk.engine.model.named_parameters() if "experts" in name)
    layers = sum(p.numel() for layer in desk.engine.anatomy.layers for p in layer.parameters())
    at_two = 1 - expert / 2 / layers
    used = streamed(desk).statistics().used_fraction
    assert used is not None
    assert at_two <= used < 1.0
    assert streamed(llama).statistics().used_fraction is None


def test_the_books_say_what_was_moved_and_waited_for(llama: Desk) -> None:
    llama.open()
    llama.run(PROMPT, 8)
    told = llama.engine.reading.statistics.weights
    assert (told.residency, told.ring_slots) == ("streamed", 2)
    assert told.copy_gigabytes_per_second is not None
    assert told.copy_gigabytes_per_second > 0
    assert 0 <= told.waited_seconds <= told.pass_seconds


def test_every_copy_is_in_the_books_once(llama: Desk) -> None:
    """The log has the copies by layer in the order of the pass, with bytes and times; the wait for a copy is known once
    it is over."""
    weights = streamed(llama)
    llama.open()
    llama.run(PROMPT, 1)
    arrive(weights)
    last = llama.ask(ask.ReadCopies()).copies[-1].number
    moved = moved_by(llama, lambda: llama.run(PROMPT, 3))
    copies = llama.ask(ask.ReadCopies(since=last)).copies
    assert [copy.number for copy in copies] == list(range(last + 1, last + 1 + 3 * 8))
    assert [copy.layer for copy in copies] == [(copies[0].layer + step) % 8 for step in range(3 * 8)]
    assert sum(copy.bytes_moved for copy in copies) == moved
    assert all(copy.seconds > 0 for copy in copies)
    assert all(copy.begun > 0 for copy in copies)
    assert sum(copy.stalled_seconds is None for copy in copies) <= 2, "only what came ahead and was not needed yet"


def test_a_copy_says_for_how_long_something_was_computed_also_where_a_pass_reads_a_lens(llama: Desk) -> None:
    """A lens is a pass within the pass, which goes on computing behind it."""
    llama.open()
    llama.run(PROMPT, 1)
    last = llama.ask(ask.ReadCopies()).copies[-1].number
    llama.stop_at("resid_post.3", when="prob(17) > 2")
    llama.run(PROMPT, 3)
    copies = llama.ask(ask.ReadCopies(since=last)).copies
    assert len(copies) >= 2 * 8
    assert all(0 <= copy.overlapped_seconds <= copy.seconds * (1 + 1e-6) for copy in copies)
    llama.clear()


def test_weights_that_stay_have_no_copies() -> None:
    desk = desk_of("llama")
    desk.open()
    desk.run(PROMPT, 2)
    assert desk.ask(ask.ReadCopies()).copies == ()


def test_the_books_of_copies_keep_the_last_ones() -> None:
    copies = ArrivedCopies(kept=3)
    for block in range(5):
        copies.add(BlockCopy(block=block, nbytes=1))
    assert [(copy.number, copy.block) for copy in copies.since(0)] == [(3, 2), (4, 3), (5, 4)]
    assert [copy.number for copy in copies.since(4)] == [5]


class Alternating:
    """A desk of which every second layer streams. `waiting` are the layers in the ring whenever layer 2, which stays,
    or the head begins."""

    def __init__(self) -> None:
        self.desk = streamed_desk("llama", (1, 3, 5, 7))
        self.waiting: list[tuple[str, set[int | None]]] = []
        anatomy, model = self.desk.engine.anatomy, self.desk.engine.model
        anatomy.layers[2].register_forward_pre_hook(lambda *_: self._note("layer 2"))
        model.lm_head.register_forward_pre_hook(lambda *_: self._note("head"))

    def _note(self, where: str) -> None:
        slots = streamed(self.desk).statistics().ring
        self.waiting.append((where, {slot.layer for slot in slots}))


@pytest.fixture(scope="module")
def alternating() -> Iterator[Alternating]:
    found = Alternating()
    found.desk.open()
    found.desk.run(PROMPT, 1)  # the ring learns the order
    yield found
    found.desk.close_all()


def test_copies_go_on_while_layers_that_stay_and_the_head_are_computed(alternating: Alternating) -> None:
    """A layer's slot is filled anew as soon as it was computed with, where no other session needs it."""
    desk = alternating.desk
    alternating.waiting.clear()
    desk.run(PROMPT, 3)
    assert alternating.waiting == [("layer 2", {3, 5}), ("head", {1, 3})] * 3


def test_a_layer_stays_in_its_slot_until_all_sessions_have_computed_it(alternating: Alternating) -> None:
    desk = alternating.desk
    desk.open("other")
    alternating.waiting.clear()
    replies: list[Any] = []
    for name in ("a", "other"):
        desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=1, ignore_eos=True), replies)
    late = streamed(desk).ring.late
    desk.settle()
    assert len(replies) == 2
    assert alternating.waiting[:2] == [("layer 2", {1, 3})] * 2
    assert streamed(desk).ring.late == late


def test_a_layer_that_a_stop_left_is_still_in_its_slot(alternating: Alternating) -> None:
    """The pass goes on from within the layer, so that it needs its weights once more."""
    desk = alternating.desk
    desk.stop_at("mlp_out.3", when="step == 0")
    desk.run(PROMPT, 1)
    assert {slot.layer for slot in streamed(desk).statistics().ring} == {3, 5}
    late = streamed(desk).ring.late
    desk.clear()
    desk.resume()
    assert streamed(desk).ring.late == late
