from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.desk import Desk, build_desk, desk_of
from tests.engine.memory.kv.runs import model_of
from tests.engine.plain import plain_of
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread


@pytest.fixture(scope="package", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread():
        yield
    desk_of.cache_clear()
    plain_of.cache_clear()
    model_of.cache_clear()


@pytest.fixture(scope="module")
def worded() -> Desk:
    """The engine of a tiny Llama with a tokenizer."""
    return build_desk(build("llama"), tokenizer())


@pytest.fixture
def llama() -> Iterator[Desk]:
    """The tiny Llama's engine, given back with no session."""
    desk = desk_of("llama")
    yield desk
    desk.close_all()
