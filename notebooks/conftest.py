"""nbval compares these notebooks strictly, all but the pixels of pictures and the graphs for the sidebar, whose card is
compared: they name the engine's process. A copy of this folder alone is compared as well: each of its notebooks has a
Jupyter of its own then, as the checkout's conftest gives to those beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from djinn_jupyter.methods.circuits.card.circuit import MIME

SANITIZE = Path(__file__).with_name("sanitize.cfg")
ALONE = not Path(__file__).parents[1].joinpath("conftest.py").exists()
HOME = Path(tempfile.mkdtemp(prefix="djn-")) if ALONE else None


def pytest_configure(config: pytest.Config) -> None:
    os.environ["DJINN_STATIC"] = "1"
    if getattr(config.option, "nbval", False) and config.option.nbval_sanitize_with is None:
        config.option.nbval_sanitize_with = str(SANITIZE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare = (*notebook.skip_compare, MIME)  # type: ignore[union-attr]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A kernel that nbval starts gets the name that a Jupyter server would have given it."""
    os.environ["JPY_SESSION_NAME"] = str(item.path)
    if HOME is not None:
        os.environ.update(_places(HOME / item.path.stem))


def pytest_unconfigure() -> None:
    """No engine of a copy outlives the run."""
    for place in HOME.iterdir() if HOME is not None else ():
        stop = [sys.executable, "-m", "djinn_jupyter.cli.main", "stop", "--all", "--force", "--forget"]
        subprocess.run(stop, env=os.environ | _places(place), stdout=subprocess.DEVNULL, check=False)
    if HOME is not None:
        shutil.rmtree(HOME, ignore_errors=True)


def _places(home: Path) -> dict[str, str]:
    return {"JUPYTER_RUNTIME_DIR": str(home / "run"), "JUPYTER_DATA_DIR": str(home / "data")}
