"""`%djinn_reproduce` computes a kept grid again and says what it finds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.request import Sweep
from tests.magics.conftest import Notebook, last
from tests.widgets.swept import with_values

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_a_grid_in_a_file_or_a_variable_is_computed_again(notebook: Notebook, tmp_path: Path) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    notebook.cell(f"%djinn_sweep resid_post --from clean {METRIC} --seed 3 -o grid")
    grid = notebook.shell.user_ns["grid"]
    asked = last(notebook, Sweep)
    file = grid.save(tmp_path / "a.grid.djinn")
    assert "The same bits: 40 values of Grid of" in notebook.cell(f"%djinn_reproduce {file} -o found")
    again = last(notebook, Sweep)
    assert (again.site, again.seed, again.clean) == (asked.site, 3, (1, 2, 3))
    assert notebook.shell.user_ns["found"].same
    reply = with_values(grid.replies[0], np.where(grid.values == -3, -2.5, grid.values))
    notebook.shell.user_ns["other"] = Grid([reply])
    said = notebook.cell("%djinn_reproduce other")
    assert "Other bits: 1 of 40 values differ, by up to 0.5, most at layer 0, position 0." in said


def test_what_is_no_whole_grid_is_one_line(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(f"%djinn_sweep resid_post --edit zero {METRIC} -o grid")
    assert "neither a variable nor a file or folder 'nothing'" in notebook.fails("%djinn_reproduce nothing")
    notebook.cell("three = 3")
    assert "3 is none of these" in notebook.fails("%djinn_reproduce three")
    grid = notebook.shell.user_ns["grid"]
    notebook.shell.user_ns["old"] = Grid([msgspec.structs.replace(grid.replies[0], made=None)])
    assert "This grid is not whole" in notebook.fails("%djinn_reproduce old")
