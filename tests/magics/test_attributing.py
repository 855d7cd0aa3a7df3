"""`%djinn_attribute` sends one sweep with an estimate and draws the grid."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from tests.magics.conftest import Notebook, last

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_an_attribution_is_a_sweep_with_an_estimate(notebook: Notebook) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    notebook.cell(f"%djinn_attribute z.*[*] --from clean {METRIC} --steps 8 -o scores")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.clean) == ("z.*[*]", ("layer", "head"), (1, 2, 3))
    assert (asked.corrupted, asked.estimate) == ("work/paris.ipynb", Estimate(steps=8))
    assert "scores" in notebook.shell.user_ns


def test_the_strongest_cells_are_swept_exactly_and_both_are_drawn(notebook: Notebook) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    said = notebook.cell(f"%djinn_attribute z.*[*] --from clean {METRIC} --correct cancellation --top 2 -o scores")
    asked = last(notebook, Sweep)
    scores = notebook.shell.user_ns["scores"]
    assert (asked.estimate, asked.mode, asked.clean, len(asked.chosen)) == (None, "exact", (1, 2, 3), 2)
    sweeps = [one for one in notebook.engine.channel.requests if isinstance(one, Sweep)]
    assert [one.estimate for one in sweeps] == [Estimate(corrections=("cancellation",)), None]
    assert "estimates and exact changes" in said
    assert (~np.isnan(scores.confirmed)).sum() == 2
    assert "From 1 to" in notebook.fails(f"%djinn_attribute z.*[*] --from clean {METRIC} --top 0")


def test_options_are_those_of_a_sweep(notebook: Notebook) -> None:
    notebook.cell(f"%djinn_attribute mlp_out --edit zero --positions -1 --window 2 {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.over, asked.positions, asked.windows) == (("layer", "position"), (-1,), (("layer", 2),))
    assert (type(asked.edit).__name__, asked.estimate) == ("Zero", Estimate())
    assert "needs a metric" in notebook.fails("%djinn_attribute z")
    assert "from 1 to 1,000 steps" in notebook.fails(f"%djinn_attribute z --over layer,head {METRIC} --steps 0")
