"""Programs write the reference pages, and each page is current with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from djinn_jupyter.magics import table

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("write_reference", ROOT / "docs" / "write_reference.py")
write_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_reference)


@pytest.mark.parametrize("name", sorted(write_reference.PAGES))
def test_reference_page_is_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == write_reference.PAGES[name](), "run: python docs/write_reference.py"


def test_the_table_has_the_module_of_every_magic() -> None:
    written = {
        name: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "djinn_jupyter").rglob("*.py")
        for name in re.findall(r"^    def (djinn_\w+)\(self, args", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert dict(table.MODULES) == written


def test_every_magic_is_in_the_reference() -> None:
    assert list(table.MODULES) == re.findall(r"^## %(\w+)$", write_reference.magics(), re.MULTILINE)
