"""A text of megabytes, in an engine whose tokenizer is written in Python: no other client waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest
from transformers import ByT5Tokenizer

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import EngineError, PromptTooLong
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.engines import own_registry
from tests.families import build

CONTEXT = 50_000
ROUNDS = 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    folder = tmp_path_factory.mktemp("model")
    build("llama", layers=2).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    with own_registry(tmp_path_factory.mktemp("own")):
        yield dj.load(folder, dtype="float32", device=computed_on(), threads=1)


def _children(engine: RemoteEngine) -> list[psutil.Process]:
    return psutil.Process(engine.entry.pid).children()


@pytest.mark.parametrize("size", [1_000_000, pytest.param(4_000_000, marks=pytest.mark.slow)])
def test_nobody_waits_for_a_text_of_megabytes(engine: RemoteEngine, size: int) -> None:
    """Ping, pause and Hello are answered while it cannot come to its end; it is refused when it has been counted."""
    session = engine.session("asks")
    engine.tokenize("b" * 3000)  # the process is there
    (child,) = _children(engine)
    child.suspend()
    text: Future[told.Reply] = engine.channel.ask(ask.Tokenize(text="a" * (size - 1)))
    for _ in range(ROUNDS):
        engine.ping()
        session.pause()
        engine.channel.ask(protocol.hello(holder="greets", user="me")).result()
    assert not text.done()
    child.resume()
    with pytest.raises(PromptTooLong, match=f"{size:,} tokens and the model 50,000 positions"):
        text.result()


def test_the_tokens_are_those_of_the_tokenizer(engine: RemoteEngine) -> None:
    for text in ("Grüße, 東京 \U0001f30d", "Grüße, 東京 \U0001f30d " * 1000):
        tokenized = engine.tokenize(text)
        assert list(tokenized.tokens) == ByT5Tokenizer()(text).input_ids
        assert tokenized.text == text + "</s>"


def test_a_crash_of_the_process_is_one_sentence_and_the_next_text_starts_another(engine: RemoteEngine) -> None:
    engine.tokenize("b" * 3000)
    (child,) = _children(engine)
    child.suspend()
    text = engine.channel.ask(ask.Tokenize(text="b" * 3000))
    child.kill()
    with pytest.raises(EngineError, match=r"ended \(SIGKILL\) before it had tokenized this one; ask again"):
        text.result()
    assert len(engine.tokenize("b" * 3000).tokens) == 3001
