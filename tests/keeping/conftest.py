from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.desk import desk_of
from tests.engine.plain import plain_of


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """The models here are so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    desk_of.cache_clear()
    plain_of.cache_clear()
