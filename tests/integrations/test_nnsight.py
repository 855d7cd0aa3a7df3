"""The lines of nnsight in docs/coming_from.md: `make peers` installs it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integrations import coming_from

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nnsight") is None, reason="no nnsight here: make peers"),
]


def test_the_lines_of_the_page_run(tmp_path: Path) -> None:
    left = coming_from.run("nnsight", tmp_path)
    assert left["logits"].shape == left["edited"].shape == (1, 5, 1393)
    assert left["patched"].shape == (1, 1393)
