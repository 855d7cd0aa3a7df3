from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

import pytest

from djinn_jupyter.engine.process.selftest import Proof
from tests.engine.proofs import proven_once
from tests.faults.inside import Inside
from tests.threads import one_thread

PROOFS: Final[dict[Hashable, Proof]] = {}  # of these files: what others plant into the engine is in no key


@pytest.fixture(scope="module", autouse=True)
def small_models() -> Iterator[None]:
    with one_thread(), proven_once(PROOFS):
        yield


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("inside"))
