"""The counts of the house: on a file of known size, and of a prompt in a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_evaluation.benchmarks.house import Source
from djinn_evaluation.benchmarks.rooms import PACKAGE, rooms
from djinn_evaluation.serving import private_jupyter

FILE = '''"""A module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


class Page:
    def free(self) -> None:
        import sys

        sys.exit()


def f() -> None: ...
'''


def test_the_header_of_a_file_ends_with_its_imports(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(FILE)
    source = Source.read(tmp_path / "page.py")
    assert (source.lines, source.header, source.classes, source.functions) == (18, 8, 1, (1, 4))


@pytest.mark.processes
def test_a_prompt_crosses_rooms_from_its_receipt_to_the_first_layer(tmp_path: Path) -> None:
    with private_jupyter():
        found = [set(crossed) for crossed in rooms(tmp_path, rounds=2)]
    assert all({f"{PACKAGE}.wire.codec", f"{PACKAGE}.engine.loop.dispatch"} <= crossed for crossed in found)
    assert all(30 < len(crossed) < 200 for crossed in found)
    assert not any(f"{PACKAGE}.link" in module for crossed in found for module in crossed)
