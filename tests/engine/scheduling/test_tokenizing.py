"""Texts become tokens on threads of their own: in the order in which a session was asked, and each request answered."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.loop.intake import AT_ONCE_CHARACTERS, WAITING
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import EngineError, PromptTooLong, UsageError
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, engine_like
from tests.engine.model.test_tokenizer import byte_level, metaspace
from tests.families import build
from tests.waiting import SECONDS

LONG = "The capital of France is Paris. " * 80
assert len(LONG) > AT_ONCE_CHARACTERS


class HeldTokenizer(TokenText):
    """A tokenizer that waits at every long text until it is let go."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def encode(self, text: str, rendered: bool = False, most: int | None = None) -> list[int]:
        self.threads.append(threading.current_thread().name)
        if len(text) > AT_ONCE_CHARACTERS:
            self.begun.set()
            assert self.go_on.wait(SECONDS)
        return [token % 128 for token in super().encode(text, rendered, most)[:12]]


@pytest.fixture(scope="module")
def shared() -> Desk:
    return build_desk(build("llama", layers=2), byte_level())


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    """An engine whose tokenizer is held; let go and without sessions in the end."""
    kept, held = shared.engine, HeldTokenizer(byte_level())
    held.tokenizer.model_max_length = 10**9
    engine = engine_like(shared, description=_with_context(kept.description, 10_000), tokenizer=held)
    shared.engine = engine
    yield shared
    held.go_on.set()
    while engine.tokenizing.busy or engine.tick():
        engine.mailbox.wait(0.01)
    shared.close_all()
    engine.close()
    shared.engine = kept


def _with_context(description: Any, context: int | None) -> Any:
    import msgspec

    return msgspec.structs.replace(description, context_length=context, vocab_size=10**6)


def _run(name: str = "a", text: str = LONG) -> ask.Run:
    return ask.Run(session=name, text=text, max_new_tokens=1, ignore_eos=True)


def _tick_until(desk: Desk, replies: list[Any], count: int) -> None:
    while len(replies) < count:
        if not desk.engine.tick():
            desk.engine.mailbox.wait(0.01)


def test_the_thread_that_polls_and_the_one_that_computes_read_no_long_text(desk: Desk) -> None:
    desk.open("a"), desk.open("b")
    replies: list[Any] = []
    desk.post(_run(), replies)
    desk.post(ask.Tokenize(text=LONG), replies)
    assert desk.engine.tokenizer.begun.wait(SECONDS)
    assert desk.run((1, 2, 3), 2, name="b").tokens
    assert not replies
    desk.engine.tokenizer.go_on.set()
    _tick_until(desk, replies, 2)
    assert {type(reply) for reply in replies} == {told.Finished, told.Tokenized}
    assert all(name.startswith("djinn-") for name in desk.engine.tokenizer.threads)


def test_a_short_text_does_not_wait_for_a_long_one(desk: Desk) -> None:
    replies: list[Any] = []
    desk.post(ask.Tokenize(text=LONG * 30), replies)
    assert desk.engine.tokenizer.begun.wait(SECONDS)
    assert isinstance(desk.ask(ask.Tokenize(text="The capital")), told.Tokenized)
    assert not replies


def test_what_a_session_is_asked_meanwhile_is_answered_after_its_prompt(desk: Desk) -> None:
    desk.open()
    replies: list[Any] = []
    for request in (_run(), ask.SetBreakpoint(session="a", site="1"), ask.ReadHistory(session="a")):
        desk.post(request, replies)
    desk.engine.tick()
    assert not replies
    desk.engine.tokenizer.go_on.set()
    _tick_until(desk, replies, 3)
    assert [type(reply) for reply in replies] == [told.BreakpointSet, told.History, told.Paused]


def test_a_session_closed_meanwhile_has_its_prompt_answered_once(desk: Desk) -> None:
    desk.open()
    replies: list[Any] = []
    desk.post(_run(), replies)
    assert desk.engine.tokenizer.begun.wait(SECONDS)
    desk.close("a")
    assert [(type(reply), reply.code) for reply in replies] == [(told.Failed, "UnknownSession")]
    desk.engine.tokenizer.go_on.set()
    while desk.engine.tokenizing.busy or desk.engine.tick():
        desk.engine.mailbox.wait(0.01)
    assert len(replies) == 1


def test_a_prompt_for_no_session_is_refused_at_once(desk: Desk) -> None:
    replies: list[Any] = []
    desk.post(_run("nobody"), replies)
    desk.engine.tick()
    assert [reply.code for reply in replies] == ["UnknownSession"]


def test_a_pause_withdraws_a_prompt_that_is_still_tokenized(desk: Desk) -> None:
    desk.open()
    desk.run((1, 2, 3), 1)
    before = desk.logits()
    replies: list[Any] = []
    desk.post(_run(), replies)
    assert desk.ask(ask.Pause(session="a")) == told.Pausing(was_running=True)
    assert "paused before its prompt was tokenized" in replies[0].message
    assert torch.equal(desk.logits(), before)


def test_a_prompt_to_a_running_session_is_refused_without_being_read(desk: Desk) -> None:
    desk.open()
    replies: list[Any] = []
    desk.post(ask.Run(session="a", tokens=(1, 2, 3), max_new_tokens=50, ignore_eos=True), [])
    desk.engine.tick()
    desk.post(_run(), replies)
    desk.engine.dispatcher.read_mail(), desk.engine.reply_gate.send()
    assert [reply.code for reply in replies] == ["IllegalMove"]


def test_no_more_texts_wait_than_the_queue_has_room_for(desk: Desk) -> None:
    replies: list[Any] = []
    for _ in range(WAITING + 1):
        desk.post(ask.Tokenize(text=LONG), replies)
    assert [reply.code for reply in replies] == [EngineError.__name__]
    assert "ask again in a moment" in replies[0].message


def test_a_text_that_cannot_fit_is_refused_by_its_length_unread(desk: Desk) -> None:
    desk.open()
    for request in (_run(text="a" * 3_999_999), ask.Tokenize(text="a" * 3_999_999)):
        with pytest.raises(PromptTooLong, match=r"3,999,999 characters, which are [\d,]+ tokens or more.*10,000"):
            desk.ask(request)
    with pytest.raises(UsageError, match="in parts"):
        desk.ask(ask.Detokenize(tokens=tuple(range(10_001))))
    assert desk.engine.tokenizer.threads == []


@pytest.mark.parametrize("made", [byte_level, metaspace])
def test_the_bound_is_never_above_the_count(made: Any) -> None:
    """This holds also for texts made of nothing but the longest tokens."""
    tokenizer = made()
    texts = TokenText(tokenizer)
    longest = max(tokenizer.get_vocab(), key=len)
    for text in (tokenizer.decode(tokenizer.convert_tokens_to_ids([longest])) * 50, LONG, "\u0301e" * 40, " " * 300):
        count = len(texts.encode(text))
        texts.require_room(text, count)
        with pytest.raises(PromptTooLong):
            texts.encode(text, most=count - 1)


def test_no_bound_is_claimed_where_characters_can_vanish() -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    strips = byte_level()
    strips.backend_tokenizer.normalizer = normalizers.Strip()
    swallows = byte_level()
    swallows.add_special_tokens({"pad_token": "<pad>"})
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for tokenizer in (strips, PreTrainedTokenizerFast(tokenizer_object=words)):
        assert TokenText(tokenizer).encode("   a" + " " * 1000, most=300)
    assert TokenText(byte_level())._longest is not None


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CHAT = "{% if 'all' in messages[0].content %}" + LOOPS + "{% endif %}<{{ messages[0].content }}>"


@pytest.fixture
def chatting(shared: Desk) -> Iterator[Desk]:
    """An engine whose tokenizer has a chat template that does not end for a prompt with `all` in it."""
    kept, tokenizer = shared.engine, byte_level()
    tokenizer.chat_template = CHAT
    description = _with_context(kept.description, 10_000)
    engine = engine_like(shared, description=description, tokenizer=TokenText(tokenizer))
    shared.engine = engine
    yield shared
    shared.close_all()
    engine.close()
    shared.engine = kept


def test_a_chat_is_its_template_without_further_special_tokens(chatting: Desk) -> None:
    tokenized = chatting.ask(ask.Tokenize(text="The", chat=True))
    assert tokenized.text == "<The>"
    assert tokenized.tokens == chatting.ask(ask.Tokenize(text="<The>")).tokens


def test_nobody_waits_for_a_template_that_does_not_end(chatting: Desk) -> None:
    """Others run and tokenize, a pause takes the chat back, and the end breaks the template off."""
    chatting.open("a"), chatting.open("b")
    replies: list[Any] = []
    chatting.post(ask.Tokenize(text="all", chat=True), replies)
    chatting.post(ask.Run(session="a", text="all", chat=True), replies)
    assert chatting.ask(ask.Tokenize(text="The")).text == "The"
    assert chatting.run((1, 2, 3), 2, name="b").tokens
    assert chatting.ask(ask.Pause(session="a")) == told.Pausing(was_running=True)
    assert [reply.code for reply in replies] == ["IllegalMove"]


def test_the_rows_of_a_batch_of_chats_all_wait(chatting: Desk) -> None:
    replies: list[Any] = []
    for _ in range(WAITING * 2):
        chatting.post(ask.Tokenize(text="The", chat=True), replies)
    _tick_until(chatting, replies, WAITING * 2)
    assert {reply.text for reply in replies} == {"<The>"}


ENDS = """
import subprocess
import sys
import threading
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.loop.intake import Tokenizing

begun = threading.Event()
texts = Tokenizing(TokenText(None), None, 1, lambda: None, lambda error: None)
texts.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
texts.close()
"""


def test_work_that_does_not_end_keeps_no_process_alive() -> None:
    assert subprocess.run([sys.executable, "-c", ENDS], timeout=SECONDS, check=True).returncode == 0
