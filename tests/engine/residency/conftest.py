from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.desk import Desk, desk_of
from tests.engine.plain import plain_of
from tests.engine.residency.leaving import made
from tests.threads import one_thread


@pytest.fixture(scope="package", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread():
        yield
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
