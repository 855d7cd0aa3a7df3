"""An engine in this process with a small model that has a tokenizer, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=3), tokenizer())


@pytest.fixture
def engine(desk: Desk) -> Iterator[RemoteEngine]:
    with reached(desk) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama", layers=3).double()


@pytest.fixture(scope="module")
def wide(model: Any) -> Iterator[RemoteEngine]:
    """An engine of that model, whose passes can be compared with its own."""
    with one_thread(), reached(build_desk(model)) as [engine]:
        yield engine
