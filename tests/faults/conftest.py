from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.faults.inside import Inside


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """The models here are so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))
