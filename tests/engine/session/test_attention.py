"""A session of eager attention in an engine of sdpa is plain Hugging Face loaded with eager; others are as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.passes import epilogue
from djinn_jupyter.errors import IllegalMove, OutOfDeviceMemory, UsageError
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.methods.sweep.request import Sweep, Swept
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import carry, future, pair_of, reading, same
from tests.engine.plain import generate, plain_of
from tests.families import build

pytestmark = pytest.mark.drawn

PROMPT, NEW = tokens(21, seed=5), 4
FAMILIES = ("llama", "gpt2", "gemma3_text", "mistral", "cohere2", "mixtral", "falcon_h1", "qwen3", "deepseek_v3", "phi")


@pytest.fixture
def desk() -> Iterator[Desk]:
    found = desk_of("llama")
    yield found
    found.close_all()


def eager(desk: Desk, name: str = "a") -> str:
    """Open a session of eager attention."""
    desk.open(name)
    desk.ask(ask.SetAttention(session=name, attention="eager"))
    return name


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_plain_model_loaded_with_eager_and_others_stay_sdpa(family: str) -> None:
    desk = desk_of(family)
    eager(desk)
    own = desk.outcome(desk.run(PROMPT, NEW))
    desk.open("other")
    beside = desk.outcome(desk.run(PROMPT, NEW, name="other"), "other")
    again = desk.outcome(desk.run(PROMPT, NEW))
    desk.close_all()
    assert own == again == generate(plain_of(family, attention="eager"), PROMPT, NEW)
    assert beside == generate(plain_of(family), PROMPT, NEW)
    assert desk.engine.model.config.get_text_config()._attn_implementation == "sdpa"


def test_two_runs_of_both_kinds_in_turn_keep_their_bits(desk: Desk) -> None:
    """Each pass of one comes between two of the other."""
    eager(desk)
    desk.open("other")
    replies: list[Any] = []
    for name in ("a", "other"):
        desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=12, ignore_eos=True), replies)
    while len(replies) < 2:
        desk.engine.tick()
    assert desk.logits("a").equal(generate(plain_of("llama", attention="eager"), PROMPT, 12).logits)
    assert desk.logits("other").equal(generate(plain_of("llama"), PROMPT, 12).logits)


def test_a_pattern_is_a_point_to_edit_there_and_not_elsewhere(desk: Desk) -> None:
    expected = _edited(desk_of("llama", attention="eager"))
    eager(desk)
    assert _edited_in(desk, "a") == expected
    desk.open("other")
    desk.stop_at("pattern.5[2]", name="other")
    desk.run(PROMPT, NEW, name="other")
    with pytest.raises(UsageError, match="looked at, not changed"):
        desk.edit(Zero(), name="other")


def _edited(other: Desk) -> Any:
    other.open()
    try:
        return _edited_in(other, "a")
    finally:
        other.close_all()


def _edited_in(desk: Desk, name: str) -> Any:
    desk.stop_at("pattern.5[2]", "step == 1", name=name)
    desk.run(PROMPT, NEW, name=name)
    desk.edit(Zero(), name=name)
    return desk.outcome(desk.resume(name), name)


def test_looks_lens_and_effect_of_its_stop_are_those_of_an_eager_engine(desk: Desk) -> None:
    def seen(where: Desk) -> list[Any]:
        where.stop_at("resid_post.4")
        where.run(PROMPT, NEW)
        below, ahead = where.value("pattern.2"), where.value("attn_scores.6", ahead=True)
        attributed = where.ask(Attribute(session="a", tokens=(7,), ahead=True))
        effect = where.logits_ahead().effect
        return [below, ahead, attributed.logit, attributed.contributions, effect, where.step(by="point").site]

    other = desk_of("llama", attention="eager")
    other.open()
    expected = seen(other)
    other.close_all()
    eager(desk)
    assert same(seen(desk), expected)


def test_it_comes_back_from_the_journal_and_from_a_checkpoint_and_a_fork_has_it(tmp_path: Path) -> None:
    """The rows of the one from the journal are computed again, as eager."""
    one, other = pair_of("llama")
    journal(one, tmp_path / "alive")
    eager(one)
    eager(one, "empty")
    one.steer("pattern.3[1]", Zero())
    one.stop_at("pattern.4", "step == 2")
    one.run(PROMPT, NEW)
    one.fork("b")
    written(one)
    assert set(journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))) == {"a", "b", "empty"}
    assert {other.describe(name).attention for name in ("a", "b", "empty")} == {"eager"}
    assert other.describe("a").exactness == "recomputed"
    carry(one, other, "b")
    assert other.describe("b").attention == "eager"
    assert same(reading(one, "b"), reading(other, "b"))
    for name in "ab":
        assert same(future(one, name), future(other, name))
    forget(other)
    forget(one)


def test_fast_runs_of_it_are_computed_alone_and_say_so(desk: Desk) -> None:
    replies: list[Any] = []
    for name in ("a", "b"):
        eager(desk, name)
        desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=6, ignore_eos=True, mode="fast"), replies)
    while len(replies) < 2:
        desk.engine.tick()
    assert [reply.shared for reply in replies] == [0, 0]
    assert "eager attention" in replies[0].note
    assert desk.logits("b").equal(generate(plain_of("llama", attention="eager"), PROMPT, 6).logits)


def test_a_sweep_of_its_line_is_eager(desk: Desk) -> None:
    def swept(where: Desk, mode: Any) -> Swept:
        where.run(PROMPT, 0)
        where.open("sweep")
        request = Sweep(
            session="sweep",
            corrupted="a",
            site="pattern",
            over=("layer", "head"),
            metrics=("logit(9)",),
            edit=Zero(),
            mode=mode,
        )
        return where.ask(request)

    other = desk_of("llama", attention="eager")
    other.open()
    expected = swept(other, "exact")
    other.close_all()
    eager(desk)
    found = swept(desk, "fast")
    assert "eager" in " ".join(found.notes)
    assert (found.mode, bytes(found.measured[0].values.data)) == ("exact", bytes(expected.measured[0].values.data))


def test_lines_of_two_attentions_are_not_swept_together(desk: Desk) -> None:
    eager(desk)
    for name in ("a", "b"):
        desk.open(name) if name == "b" else None
        desk.run(PROMPT, 0, name=name)
    desk.open("sweep")
    with pytest.raises(UsageError, match="in different ways"):
        desk.ask(Sweep(session="sweep", corrupted="a", clean="b", site="z", over=("layer",), metrics=("logit(9)",)))


# --- refused ---------------------------------------------------------------------------------------------------------


def test_it_is_chosen_before_the_first_prompt(desk: Desk) -> None:
    desk.open()
    desk.stop_at("pattern.3")
    with pytest.raises(IllegalMove, match="has a line, breakpoints, rules or watches, which are of sdpa attention"):
        desk.ask(ask.SetAttention(session="a", attention="eager"))
    desk.clear()
    assert desk.ask(ask.SetAttention(session="a", attention="eager")).session.attention == "eager"
    assert desk.ask(ask.SetAttention(session="a", attention="sdpa")).session.attention is None


def test_a_family_whose_layers_were_built_for_one_attention_is_refused() -> None:
    desk = desk_of("falcon")
    desk.open()
    with pytest.raises(UsageError, match=r"cannot compute eager attention for one session: .*--attention eager"):
        desk.ask(ask.SetAttention(session="a", attention="eager"))
    assert desk.describe().attention is None
    desk.close_all()


def test_without_device_memory_to_find_its_points_it_is_refused_and_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = build_desk(build("llama", layers=2))
    desk.open()

    def none_left(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as short:
        short.setattr(epilogue, "discover", none_left)
        with pytest.raises(OutOfDeviceMemory, match="for finding the points of eager attention"):
            desk.ask(ask.SetAttention(session="a", attention="eager"))
    assert desk.describe().attention is None
    assert desk.ask(ask.SetAttention(session="a", attention="eager")).session.attention == "eager"


def test_an_engine_of_eager_serves_no_sessions_of_sdpa() -> None:
    desk = build_desk(build("llama", attention="eager"))
    desk.open()
    assert desk.ask(ask.SetAttention(session="a", attention="eager")).session.attention is None
    with pytest.raises(UsageError, match="This engine computes eager attention"):
        desk.ask(ask.SetAttention(session="a", attention="sdpa"))
