from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.desk import Desk
from tests.engine.residency.evicting import made, room_for_two


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


@pytest.fixture(scope="module")
def tight() -> Desk:
    return room_for_two()
