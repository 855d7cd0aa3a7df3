from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

import pytest

from djinn_jupyter.engine.process.selftest import Proof
from tests.engine.proofs import proven_once

PROOFS: Final[dict[Hashable, Proof]] = {}  # of these files: what others plant into the engine is in no key


@pytest.fixture(scope="module", autouse=True)
def shared_proofs() -> Iterator[None]:
    """Engines that find what another left are many to a test, and of few models."""
    with proven_once(PROOFS):
        yield
