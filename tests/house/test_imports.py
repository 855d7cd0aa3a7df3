"""The cost of imports: each claim in a fresh interpreter, because this one has everything loaded already."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import grimp
import pytest

from djinn_jupyter.extensions import Part, installed
from djinn_jupyter.magics.table import MODULES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "djinn_jupyter"

# The kernel's side. Those that are not there yet are checked from the commit that brings them.
LIGHT = sorted(name for name in ("wire", "api", "link", "magics", "widgets", "server") if (PACKAGE / name).is_dir())


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that `statement` leaves in sys.modules of a new interpreter."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def every_module_of(part: str) -> str:
    """A statement that imports all modules below djinn_jupyter.`part`, the lazy ones too."""
    files = sorted((PACKAGE / part).rglob("*.py"))
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    return "\n".join(f"import {name}" for name in sorted(names) if not name.endswith("__main__"))


def test_the_probe_sees_what_an_import_loads() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_the_package_itself_is_light() -> None:
    assert (
        loaded_by("import djinn_jupyter")
        & {"torch", "transformers", "IPython", "plotly", "ipywidgets", "numpy", "jupyter_server"}
        == set()
    )


@pytest.mark.parametrize("part", LIGHT)
def test_the_kernels_side_never_loads_torch(part: str) -> None:
    assert loaded_by(every_module_of(part)) & {"torch", "transformers"} == set()


def test_the_wire_needs_msgspec_only() -> None:
    third_party = {"numpy", "zmq", "IPython", "tornado", "psutil", "plotly", "ipywidgets"}
    assert loaded_by(every_module_of("wire")) & third_party == set()


# Who starts these: a console script, `python -m`, a Jupyter server; `djinn journals` finds its module by name.
ENTRIES = {
    "djinn_jupyter.cli.main",
    "djinn_jupyter.engine.__main__",
    "djinn_jupyter.parallel.rank",
    "djinn_jupyter.server.extension",
    "djinn_jupyter.modules.training.__main__",
    "djinn_jupyter.engine.store.journals",
}


def test_the_wheel_has_no_module_for_tests_or_training_alone() -> None:
    """No module of the package imports a test double, or the script that trained the demo model. Those of methods are
    found by their names, which stand in a string."""
    graph = grimp.build_graph("djinn_jupyter")
    leaves = {module for module in graph.modules if not graph.find_children(module)} - set(MODULES.values())
    alone = {module for module in leaves if not graph.find_modules_that_directly_import(module)}
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = {
        one for one in alone if ".methods." in one and re.search(rf'[".]{one.partition(".methods.")[2]}[:"]', text)
    }
    parts = {f"{method.package}.{part}" for method in installed() for part in get_args(Part)}
    assert alone - named - parts == ENTRIES
