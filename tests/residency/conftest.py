from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.desk import Desk, desk_of
from tests.engine.plain import plain_of

from .leaving import made


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """The models here are so small that a second thread only waits, and waits long where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    desk_of.cache_clear()
    plain_of.cache_clear()


@pytest.fixture(scope="module")
def shared() -> Desk:
    return made()


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    shared.open()
    shared.events.clear()
    yield shared
    shared.engine.tiers.mover = shared.engine.mover
    shared.close_all()
