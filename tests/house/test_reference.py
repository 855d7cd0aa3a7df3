"""Programs write the reference pages, and each page is current with the code."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import djinn_jupyter.magics

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("write_reference", ROOT / "docs" / "write_reference.py")
assert _spec is not None
assert _spec.loader is not None
write_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_reference)


@pytest.mark.parametrize("name", sorted(write_reference.PAGES))
def test_reference_page_is_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == write_reference.PAGES[name](), "run: python docs/write_reference.py"


def test_every_magic_is_in_the_reference() -> None:
    page = write_reference.magics()
    for found in pkgutil.iter_modules(djinn_jupyter.magics.__path__, "djinn_jupyter.magics."):
        module = importlib.import_module(found.name)
        for kind in vars(module).values():
            for name in vars(kind) if isinstance(kind, type) else ():
                assert not name.startswith("djinn_") or f"## %{name}\n" in page
