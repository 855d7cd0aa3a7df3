"""nbval compares these notebooks strictly, all but the pixels of pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

SANITIZE = Path(__file__).with_name("sanitize.cfg")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "nbval", False) and config.option.nbval_sanitize_with is None:
        config.option.nbval_sanitize_with = str(SANITIZE)
