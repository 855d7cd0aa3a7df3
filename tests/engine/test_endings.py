"""How a run ends: each way is named, and the session can be gone on with afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tokenizers import Regex, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Finished, SessionFinished, TokenSampled
from tests.engine.desk import Desk, build_desk, engine_like, tokens
from tests.engine.plain import generate, plain_of
from tests.engine.session.test_states import reading, same
from tests.engine.words import tokenizer
from tests.families import VOCAB, build

pytestmark = pytest.mark.drawn

PROMPT = tokens(10)


@pytest.fixture
def desk(worded: Desk) -> Iterator[Desk]:
    worded.open()
    worded.events.clear()
    yield worded
    worded.close_all()


def plain(new: int, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    return generate(plain_of("llama"), prompt, new).tokens


def text(*ids: int) -> str:
    return " ".join(f"w{n}" for n in ids)


@pytest.fixture
def eos(desk: Desk) -> Iterator[int]:
    """The fourth token of the run is the end of text."""
    token = plain(8)[3]
    engine = desk.engine
    description = msgspec.structs.replace(engine.description, eos_token_ids=(token,))
    desk.engine = engine_like(desk, description=description)
    desk.open()
    desk.events.clear()
    yield token
    desk.close_all()
    desk.engine = engine


def test_the_maximum_length_ends_a_run(desk: Desk) -> None:
    finished = desk.run(PROMPT, 5)
    assert (finished.reason, finished.tokens) == ("length", plain(5))
    assert finished.text == f" {text(*plain(5))}", "what the new tokens add to the text of the prompt"
    assert finished.prompt_tokens == PROMPT


def test_no_new_token_is_a_run_too(desk: Desk) -> None:
    """A run of no token prepares the line and reads its logits."""
    finished = desk.run(PROMPT, 0)
    assert (finished.reason, finished.tokens, finished.passes) == ("length", (), 1)
    assert finished.top[0].token == plain(1)[0]


def test_the_end_of_text_ends_a_run_unless_it_is_ignored(desk: Desk, eos: int) -> None:
    first = plain(8).index(eos)
    finished = desk.run(PROMPT, 8, ignore_eos=False)
    assert (finished.reason, finished.tokens) == ("eos", plain(8)[: first + 1])
    assert desk.run(PROMPT, 8, ignore_eos=True).tokens == plain(8)


def test_a_stop_string_ends_a_run_also_across_tokens(desk: Desk) -> None:
    new = plain(8)
    for stop in (text(new[2]), text(*new[1:3]), f" {text(*new[1:4])}"):
        at = next(n for n in range(1, 9) if stop in text(*new[:n]))
        finished = desk.run(PROMPT, 8, stop=("nothing of this", stop))
        assert (finished.reason, finished.detail, len(finished.tokens)) == ("stop_string", stop, at), stop
        assert finished.tokens == new[:at]


def stripping(silent: tuple[int, ...] = ()) -> PreTrainedTokenizerFast:
    """As Llama 2's: the decoder drops the first space. The `silent` tokens have no text."""
    vocabulary = {f"~{n}" if n in silent else f"_w{n}": n for n in range(VOCAB)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="_w0"))
    marks = [decoders.Replace("_", " "), decoders.Replace(Regex("~[0-9]+"), "")]
    inner.decoder = decoders.Sequence([*marks, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize("way", ["run", "fast", "extend", "extend by nothing", "by stops"])
@pytest.mark.parametrize("made", [tokenizer, stripping])
def test_a_stop_string_is_found_in_the_text_that_is_streamed(made: Any, way: str) -> None:
    """Also one that begins with the space before the first new token, which some decoders drop."""
    desk = build_desk(build("llama"), made())
    new = plain(6)
    for first, last in ((0, 1), (0, 2), (1, 2), (1, 4), (4, 6)):
        stop = f" {text(*new[first:last])}"
        at = next(n for n in range(1, 7) if stop in f" {text(*new[:n])}")
        desk.open()
        finished = _run(desk, way, stop)
        assert (finished.reason, finished.detail, len(finished.tokens)) == ("stop_string", stop, at), stop
        desk.close_all()


def _run(desk: Desk, way: str, stop: str) -> Finished:
    match way:
        case "run" | "fast":
            return desk.run(PROMPT, 6, stop=(stop,), mode="fast" if way == "fast" else "exact")
        case "extend":
            desk.run(PROMPT[:4], 0)
            return desk.run(PROMPT[4:], 6, stop=(stop,), extend=True)
        case "extend by nothing":
            desk.run(PROMPT, 0)
            return desk.run((), 6, stop=(stop,), extend=True)
        case _:
            desk.stop_at(4)
            reply = desk.run(PROMPT, 6, stop=(stop,))
            while not isinstance(reply, Finished):
                reply = desk.resume()
            return reply


def test_a_stop_string_is_found_across_tokens_without_text() -> None:
    new = plain(8)
    desk = build_desk(build("llama"), stripping(new[2:5]))
    desk.open()
    stop = f"{new[1]}"[-1] + " w"
    finished = desk.run(PROMPT, 8, stop=(stop,))
    assert (finished.reason, len(finished.tokens)) == ("stop_string", 6)


def test_a_stop_string_of_the_prompt_does_not_end_a_run(desk: Desk) -> None:
    assert desk.run(PROMPT, 4, stop=(text(*PROMPT[:2]),)).reason == "length"


def test_a_full_context_ends_a_run(desk: Desk) -> None:
    """The model has 512 positions: all are fed, and the token after the last one is the last."""
    long = tokens(509, seed=2)
    finished = desk.run(long, 20)
    assert (finished.reason, len(finished.tokens)) == ("context", 4)
    assert "512 positions" in finished.detail
    assert finished.tokens == plain(4, long)
    assert desk.session().cache.length == 512
    with pytest.raises(Exception, match="512 positions"):
        desk.run((5,), 1, extend=True)
    assert desk.back(2, by="token").step == 2
    assert desk.resume().tokens == finished.tokens


def test_tokens_are_told_as_they_come(desk: Desk) -> None:
    finished = desk.run(PROMPT, 5)
    told = [event for event in desk.events if isinstance(event, TokenSampled)]
    assert [event.token for event in told] == list(finished.tokens)
    assert [event.step for event in told] == [1, 2, 3, 4, 5]
    assert "".join(event.text for event in told) == finished.text
    assert [event for event in desk.events if isinstance(event, SessionFinished)] == [
        SessionFinished(session="a", stop=finished.stop, reason="length", new_tokens=5)
    ]


def test_a_run_after_each_ending_is_as_ever(desk: Desk, eos: int) -> None:
    for options in ({"ignore_eos": False}, {"stop": (text(plain(3)[2]),)}, {}):
        desk.run(PROMPT, 6, **options)
        assert desk.run(PROMPT, 6).tokens == plain(6)


@pytest.mark.parametrize("stops", [False, True], ids=["at once", "after a stop in it"])
def test_a_prompt_that_found_no_room_is_no_part_of_the_line_and_can_be_run_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    first, more = desk.run(PROMPT, 3), tokens(7, seed=6)
    line = PROMPT + first.tokens
    if stops:
        desk.stop_at(4, once=True)
        desk.run(more, 2, extend=True)
    with monkeypatch.context() as patch:
        patch.setattr(desk.engine.forward, "enter", _full)
        patch.setattr(desk.engine.residency.eviction, "find", lambda *_: False)
        with pytest.raises(SlabFull):
            desk.resume() if stops else desk.run(more, 2, extend=True)
    assert (desk.session().state, tuple(desk.session().tokens)) == ("idle", line)
    assert desk.run(more, 2, extend=True).tokens == plain(2, line + more)
    assert tuple(desk.session().tokens[: len(line + more)]) == line + more


def _full(*_: object, **__: object) -> None:
    raise SlabFull("no room")


# --- little memory -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Desk:
    """A tiny Llama with so little device memory that about a dozen pages fit."""
    model = build("llama")
    page = 8 * 2 * 2 * 16 * 8 * 4  # layers, key and value, heads, positions, features, bytes
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return build_desk(model, device_memory=weights + 12 * page, host_memory=0, disk_memory=0)


@pytest.fixture
def tight(small: Desk) -> Iterator[Desk]:
    small.open()
    small.events.clear()
    yield small
    small.close_all()


def test_a_prompt_that_does_not_fit_is_refused_and_the_line_before_it_stays(tight: Desk) -> None:
    first = tight.outcome(tight.run(PROMPT, 4))
    with pytest.raises(SlabFull, match=r"Close a session, or allow more device memory\."):
        tight.run(tokens(300, seed=4), 4)
    assert tight.session().state == "idle"
    assert tuple(tight.session().tokens) == PROMPT + first.tokens
    tight.back(2, by="token")
    assert tight.outcome(tight.resume()) == first
    tight.settle()


def test_a_slab_that_fills_up_ends_the_run_with_what_there_is(tight: Desk) -> None:
    finished = tight.run(tokens(100, seed=4), 200)
    assert isinstance(finished, Finished)
    assert finished.reason == "slab_full"
    assert 0 < len(finished.tokens) < 200
    assert finished.tokens == plain(len(finished.tokens), tokens(100, seed=4))
    assert "device memory" in finished.detail
    tight.settle()
    with pytest.raises(SlabFull):
        tight.run((), 10, extend=True)
    assert tight.session().state == "idle"
    assert tight.back(3, by="token").step == len(finished.tokens) - 3
    assert tight.resume().reason in ("slab_full", "length")
    assert tight.run(PROMPT, 4).tokens == plain(4), "a shorter prompt runs as ever"


def test_an_extension_that_does_not_fit_can_be_run_when_another_session_has_gone(tight: Desk) -> None:
    tight.open("b")
    first = tight.run(PROMPT, 3)
    tight.run(tokens(90, seed=5), 2, name="b")
    line, more = PROMPT + first.tokens, tokens(80, seed=6)
    before = reading(tight.session())
    with pytest.raises(SlabFull):
        tight.run(more, 2, extend=True)
    assert same(reading(tight.session()), before)
    tight.close("b")
    assert tight.run(more, 2, extend=True).tokens == generate(plain_of("llama"), line + more, 2).tokens
    tight.settle()


def test_another_session_is_untouched_by_a_full_slab(tight: Desk) -> None:
    tight.open("b")
    tight.stop_at(4, "step == 1", "b")
    tight.run(PROMPT, 4, "b")
    tight.run(tokens(100, seed=4), 200)
    with pytest.raises(SlabFull):
        tight.run(tokens(400, seed=4), 1)
    tight.close("a")
    assert tight.resume("b").tokens == plain(4)


def test_closing_a_session_gives_all_its_pages_back(tight: Desk) -> None:
    tight.run(tokens(60, seed=4), 2)
    tight.fork("b")
    held = tight.session().cache.statistics().pages
    assert held > 0
    assert tight.ask(ask.Close(session="a")).pages_freed == held
    assert tight.ask(ask.Close(session="b")).pages_freed == held
