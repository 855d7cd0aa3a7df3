"""`%djinn_sweep` sweeps the present line and draws the grid."""

from __future__ import annotations

import numpy as np
import pytest

from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.sweeps import Mean, Noise
from tests.magics.conftest import Notebook, last

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_a_sweep_of_the_present_line_is_drawn_and_kept(notebook: Notebook) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    said = notebook.cell(f"%djinn_sweep resid_post --over layer,position --from clean {METRIC} --seed 3 -o grid")
    asked = last(notebook, requests.Sweep)
    assert (asked.site, asked.over, asked.clean) == ("resid_post", ("layer", "position"), (1, 2, 3))
    assert (asked.corrupted, asked.mode, asked.seed) == ("work/paris.ipynb", "fast", 3)
    assert asked.metric == "logit(' Rome') - logit(' Paris')"
    grid = notebook.shell.user_ns["grid"]
    assert np.array_equal(grid.values.reshape(-1), np.arange(40) / 4 - 3)
    assert "layer 0  -3.00" in said, said
    assert "largest difference: 2.1e-06 from 4 cells computed alone, seed 3" in said
    assert "dj-cell" in notebook.html()
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_a_session_may_be_the_clean_line_and_a_figure_comes_with_hover(notebook: Notebook) -> None:
    notebook.cell("%djinn_fork other")
    said = notebook.cell(f"%djinn_sweep z --over layer,head --from other {METRIC} --exact --hover")
    asked = last(notebook, requests.Sweep)
    assert (asked.clean, asked.mode) == ("other", "exact")
    assert "each cell computed alone" in said
    assert any("application/vnd.plotly.v1+json" in output.data for output in notebook.outputs)


def test_an_edit_takes_the_place_of_a_clean_line(notebook: Notebook) -> None:
    notebook.cell(f'%djinn_sweep mlp_out.2 --over position --edit "scale 0.5" {METRIC}')
    asked = last(notebook, requests.Sweep)
    assert (asked.edit, asked.clean, asked.over) == (Scale(factor=0.5), None, ("position",))


def test_noise_takes_the_place_of_a_clean_line_and_its_samples_are_pairs(notebook: Notebook) -> None:
    said = notebook.cell(f"%djinn_sweep mlp_out --noise 1:3 --noise-scale 2 --samples 2 --seed 5 {METRIC}")
    asked = last(notebook, requests.Sweep)
    assert (asked.clean, asked.corrupted) == ("work/paris.ipynb", "work/paris.ipynb")
    assert (asked.noise, asked.seed) == (Noise(positions=(1, 2), scale=2.0), 6)
    assert "2 pairs" in said
    assert "leave --from out" in notebook.fails(f"%djinn_sweep mlp_out --noise 1 --from work/paris.ipynb {METRIC}")


def test_edits_by_name_and_coefficients_go_to_the_engine(notebook: Notebook) -> None:
    notebook.cell(f"%djinn_sweep z --over layer,head --edit mean {METRIC}")
    assert last(notebook, requests.Sweep).edit == Mean()
    notebook.cell(f'%djinn_sweep z --over layer,head --edit "scale 1" --coefs 0,0.5 {METRIC}')
    assert last(notebook, requests.Sweep).coefs == (0.0, 0.5)
    assert "is a list of numbers" in notebook.fails(f"%djinn_sweep z --edit zero --coefs a,b {METRIC}")


def test_a_sweep_that_ends_early_is_drawn_as_far_as_it_came(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(request: requests.Sweep) -> replies.Reply:
        told = replies.SweepProgressed(
            session=request.session, shape=(8, 5), corrupted=0.5, done=2, total=40, cells=(0, 1), values=(0.25, 0.75)
        )
        notebook.engine.channel.publish(told)
        raise UnknownSession("Its session was closed.")

    monkeypatch.setattr(notebook.engine, "_sweep", closed)
    assert "2 cells were finished" in notebook.fails(f"%djinn_sweep resid_post --edit zero {METRIC} -o grid")
    assert np.count_nonzero(~np.isnan(notebook.shell.user_ns["grid"].values)) == 2
    assert "The sweep is not whole: Its session was closed." in notebook.html()
    assert "under way" not in notebook.html()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("resid_post --from clean", "A sweep needs a metric"),
        (f"resid_post --from nobody {METRIC}", "There is no session 'nobody'"),
        (f"resid_post --over depth {METRIC}", "not over depth"),
        (f"resid_post --edit shrink {METRIC}", "'shrink' is no edit"),
        (f'resid_post --edit "scale \'2" {METRIC}', "A quote in this line is not closed: scale '2"),
    ],
)
def test_what_cannot_be_meant_is_one_line(notebook: Notebook, line: str, said: str) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    assert said in notebook.fails(f"%djinn_sweep {line}")
