"""The fixtures of tests of transcoders: a family whose MLPs are named in `plain_mlps`, and its engine at a desk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from djinn_jupyter.wire import requests as ask
from tests.engine.added.plain_mlps import FAMILIES, LAYERS
from tests.engine.desk import Desk, desk_of


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def desk(family: str) -> Iterator[Desk]:
    desk = desk_of(family, layers=LAYERS)
    desk.open()
    yield desk
    desk.close_all()
    for name in {module.name for module in desk.ask(ask.ListAddedModules()).modules}:
        desk.ask(ask.RemoveModule(name=name))
    assert desk.engine.budget.held()["modules"] == 0
