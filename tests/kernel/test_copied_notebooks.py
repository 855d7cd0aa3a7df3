"""A copy of the folder of notebooks is compared as the folder itself is, without the checkout around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OF_THE_CHECKOUT = ("JUPYTER_", "IPYTHONDIR", "JPY_", "DJINN_", "HF_", "PYTEST_")


@pytest.mark.slow
@pytest.mark.processes
def test_a_notebook_of_a_copy_has_its_own_name_and_jupyter(tmp_path: Path) -> None:
    """Its session is called by it, and no other notebook's engine is found."""
    shutil.copytree(NOTEBOOKS, tmp_path / "copy")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CHECKOUT)}
    outside["PYTHONPATH"] = str(NOTEBOOKS.parent)
    compared = [sys.executable, "-m", "pytest", "--nbval", "-q", "02_steering.ipynb", "03_many_notebooks.ipynb"]
    done = subprocess.run(
        compared, cwd=tmp_path / "copy", env=outside, capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
