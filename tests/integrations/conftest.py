"""A small engine in this process, its client, and the plain model beside it; the tests of a tool have their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.families import build
from tests.threads import one_thread

LAYERS = 4


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=LAYERS))


@pytest.fixture
def engine(desk: Desk) -> Iterator[RemoteEngine]:
    with reached(desk) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama", layers=LAYERS)
