from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.inside import Inside
from tests.threads import one_thread


@pytest.fixture(scope="module", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))
