"""nbval compares these notebooks strictly, all but the pixels of pictures and the graphs for the sidebar, whose card is
compared: they name the engine's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_jupyter.widgets.graph import MIME

SANITIZE = Path(__file__).with_name("sanitize.cfg")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "nbval", False) and config.option.nbval_sanitize_with is None:
        config.option.nbval_sanitize_with = str(SANITIZE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare = (*notebook.skip_compare, MIME)  # type: ignore[union-attr]
