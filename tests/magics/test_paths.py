"""`%djinn_path` reads an arrow, sends one request and shows the grid."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.methods.paths import api as paths
from djinn_jupyter.methods.paths.api import path
from djinn_jupyter.methods.sweep.request import Sweep
from tests.magics.conftest import Notebook, last

METRIC = "--metric \"logit(' Paris') - logit(' Rome')\""


def test_a_path_is_one_request_into_the_present_line(notebook: Notebook) -> None:
    notebook.shell.user_ns["other"] = [1, 2, 3]
    notebook.cell(f"%djinn_path z -> q.5[0], k.5[0, 1] --from other {METRIC} --seed 3 -o grid")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.receivers) == ("z", ("layer", "head"), ("q.5[0]", "k.5[0, 1]"))
    assert (asked.clean, asked.corrupted, asked.into) == ("work/paris.ipynb", (1, 2, 3), "clean")
    assert (asked.mode, asked.seed) == ("fast", 3)
    assert "grid" in notebook.shell.user_ns


def test_an_edit_axes_and_exactness_are_passed_on(notebook: Notebook) -> None:
    notebook.cell(f"%djinn_path mlp_out->logits --edit zero --over layer,position --exact {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.receivers, asked.mode) == (
        "mlp_out",
        ("layer", "position"),
        ("logits",),
        "exact",
    )
    assert type(asked.edit).__name__ == "Zero"


def test_many_pairs_are_read_from_a_variable(notebook: Notebook) -> None:
    notebook.shell.user_ns["pairs"] = [([1, 2], [1, 3]), ([4, 5], [4, 6])]
    notebook.cell(f"%djinn_path z -> q.5[0] --prompts pairs {METRIC} -o grid")
    asked = last(notebook, Sweep)
    assert (asked.clean, asked.corrupted, asked.into) == ((4, 5), (4, 6), "clean")
    assert notebook.shell.user_ns["grid"].over == ("pair", "layer", "head")
    assert "leave --from out" in notebook.fails(f"%djinn_path z -> q.5[0] --prompts pairs --from pairs {METRIC}")


def test_an_adapter_is_passed_on(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(paths, "path", lambda *line, **given: asked.append(given) or path(*line, **given))
    notebook.shell.user_ns["pairs"] = [("The capital of France is", "The capital of Italy is")]
    notebook.fails(f"%djinn_path z -> q.5[0] --prompts pairs --adapter nobody {METRIC}")
    assert asked[0]["adapter"] == "nobody"
