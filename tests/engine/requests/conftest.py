from __future__ import annotations

import pytest

from tests.engine.desk import Desk


@pytest.fixture
def desk(llama: Desk) -> Desk:
    """The tiny Llama's engine with a session."""
    llama.open()
    return llama
