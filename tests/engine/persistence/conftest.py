from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.desk import desk_of
from tests.engine.plain import plain_of
from tests.threads import one_thread


@pytest.fixture(scope="package", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread():
        yield
    desk_of.cache_clear()
    plain_of.cache_clear()
