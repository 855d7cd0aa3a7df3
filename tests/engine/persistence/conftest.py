from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.proofs import proven_once


@pytest.fixture(scope="package", autouse=True)
def shared_proofs() -> Iterator[None]:
    """Engines that find what another left are many to a test, and of few models."""
    with proven_once():
        yield
