"""pytest's plugin of the step `mended`: it leaves out the tests that have an outcome. It imports nothing of ours."""

from __future__ import annotations

import json
import os
from typing import Any, Final

KNOWN: Final = "DJINN_DECIDED_TESTS"  # the environment's variable that names them


def pytest_collection_modifyitems(items: list[Any]) -> None:
    known = set(json.loads(os.environ[KNOWN]))
    items[:] = [item for item in items if item.nodeid not in known]
