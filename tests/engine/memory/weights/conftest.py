from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threads import one_thread


@pytest.fixture(scope="package", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread():
        yield
