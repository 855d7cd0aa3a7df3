"""Magics of sweeps, attributions and paths: a line or many, drawn, kept and spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.methods.datasets.api import collecting
from djinn_jupyter.methods.paths import api as paths
from djinn_jupyter.methods.paths.api import path
from djinn_jupyter.methods.sweep.api import sweeping
from djinn_jupyter.methods.sweep.request import Estimate, Mean, Noise, Sweep, SweepProgressed
from djinn_jupyter.wire import replies
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import Progress
from tests.magics.conftest import Notebook, last
from tests.magics.double import EngineDouble

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_a_sweep_of_the_present_line_is_drawn_and_kept(notebook: Notebook) -> None:
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    said = notebook.cell(f"%djinn_sweep resid_post --over layer,position --from clean {METRIC} --seed 3 -o grid")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.clean) == ("resid_post", ("layer", "position"), (1, 2, 3))
    assert (asked.corrupted, asked.mode, asked.seed) == ("work/paris.ipynb", "fast", 3)
    assert asked.metrics == ("logit(' Rome') - logit(' Paris')",)
    grid = notebook.shell.user_ns["grid"]
    assert np.array_equal(grid.values.reshape(-1), np.arange(40) / 4 - 3)
    assert "position  0 'The'" in said, said
    assert "largest difference: 2.1e-06 from 4 cells computed alone, seed 3" in said
    assert "dj-cell" in notebook.html()
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_a_session_may_be_the_clean_line_and_a_figure_comes_with_hover(notebook: Notebook) -> None:
    notebook.cell("%djinn_fork other")
    said = notebook.cell(f"%djinn_sweep z --over layer,head --from other {METRIC} --exact --hover")
    asked = last(notebook, Sweep)
    assert (asked.clean, asked.mode) == ("other", "exact")
    assert "each cell computed alone" in said
    assert any("application/vnd.plotly.v1+json" in output.data for output in notebook.outputs)


def test_a_figure_is_written_and_a_wrong_file_is_refused_before_the_sweep(notebook: Notebook, tmp_path: Path) -> None:
    said = notebook.cell(f'%djinn_sweep z --over layer,head --edit zero {METRIC} --save "{tmp_path}/a b.svg" -o grid')
    assert "written: a b.svg" in said
    written = (tmp_path / "a b.svg").read_bytes()
    grid = notebook.shell.user_ns["grid"]
    assert grid.save(tmp_path / "again.svg").read_bytes() == written
    assert grid.figure().data[0].type == "heatmap"
    assert grid.plot().get_title(loc="left") == f"change of {grid.metric}"
    notebook.engine.channel.requests.clear()
    assert "ends in .pdf, .svg, .png, .html; 'a.jpg' does not" in notebook.fails(
        f"%djinn_sweep z --over layer,head --edit zero {METRIC} --save a.jpg"
    )
    assert not [one for one in notebook.engine.channel.requests if isinstance(one, Sweep)]


def test_an_edit_or_noise_takes_the_place_of_a_clean_line(notebook: Notebook) -> None:
    notebook.cell(f'%djinn_sweep mlp_out.2 --over position --edit "scale 0.5" {METRIC}')
    asked = last(notebook, Sweep)
    assert (asked.edit, asked.clean, asked.over) == (Scale(factor=0.5), None, ("position",))
    notebook.cell(f"%djinn_sweep z --over layer,head --edit mean {METRIC}")
    assert last(notebook, Sweep).edit == Mean()
    notebook.cell(f'%djinn_sweep z --over layer,head --edit "scale 1" --coefs 0,0.5 {METRIC}')
    assert last(notebook, Sweep).coefs == (0.0, 0.5)
    assert "is a list of numbers" in notebook.fails(f"%djinn_sweep z --edit zero --coefs a,b {METRIC}")
    said = notebook.cell(f"%djinn_sweep mlp_out --noise 1:3 --noise-scale 2 --samples 2 --seed 5 {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.clean, asked.corrupted) == ("work/paris.ipynb", "work/paris.ipynb")
    assert (asked.noise, asked.seed) == (Noise(positions=(1, 2), scale=2.0), 6)
    assert "2 pairs" in said
    assert "leave --from out" in notebook.fails(f"%djinn_sweep mlp_out --noise 1 --from work/paris.ipynb {METRIC}")


def test_several_metrics_are_an_axis_and_a_picture_each(notebook: Notebook) -> None:
    other = "prob(' Rome')"
    said = notebook.cell(f'%djinn_sweep resid_post --edit zero {METRIC} --metric "{other}" -o grid')
    assert last(notebook, Sweep).metrics == ("logit(' Rome') - logit(' Paris')", other)
    grid = notebook.shell.user_ns["grid"]
    assert grid.over == ("metric", "layer", "position")
    assert np.array_equal(grid.values[1], grid.values[0] + 1)
    assert notebook.html().count('class="dj-cell"') == 80
    assert said.count("layer 7") == 2
    assert "corrupted: -3.00, -3.00" in said


def test_windows_pairs_positions_and_alignment_go_to_the_engine(notebook: Notebook) -> None:
    notebook.cell(f"%djinn_sweep resid_post --edit zero --window 3 {METRIC}")
    assert last(notebook, Sweep).windows == (("layer", 3),)
    notebook.cell(f"%djinn_sweep resid_post --edit zero --window layer=2,position=3 {METRIC}")
    assert last(notebook, Sweep).windows == (("layer", 2), ("position", 3))
    said = notebook.cell(f"%djinn_sweep z.*[*] --edit zero --pairs {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.in_pairs) == ("z.*[*]", ("layer", "head"), True)
    assert "8 other_layers" in said
    notebook.cell(f"%djinn_sweep mlp_post.2[*] --edit zero {METRIC}")
    assert last(notebook, Sweep).over == ("neuron",)
    notebook.cell(f"%djinn_sweep z.*[0,1] --edit zero {METRIC}")
    assert last(notebook, Sweep).over == ("layer",)
    assert "is a number, or one by axis" in notebook.fails(f"%djinn_sweep z --edit zero --window wide {METRIC}")
    notebook.shell.user_ns["two"] = [([1, 2, 3], [1, 2]), ([4, 5, 3], [4, 5, 6])]
    notebook.cell(f"%djinn_sweep resid_post --prompts two --align \"' is', -1, ' Italy'=' France'\" {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.clean, asked.corrupted) == ((4, 5, 3), (4, 5, 6))
    assert asked.align == ((" is", " is"), (-1, -1), (" Italy", " France"))
    notebook.cell(f'%djinn_sweep resid_post --edit zero --positions " is" {METRIC}')
    assert last(notebook, Sweep).positions == (" is",)
    notebook.cell(f"%djinn_sweep resid_post --edit zero --positions 1:3,-1 {METRIC}")
    assert last(notebook, Sweep).positions == (1, 2, -1)
    assert "leave --from" in notebook.fails(f"%djinn_sweep z --prompts two --from two {METRIC}")
    assert "--align is a list" in notebook.fails(f"%djinn_sweep z --prompts two --align France {METRIC}")


def test_a_sweep_that_ends_early_is_drawn_as_far_as_it_came(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(request: Sweep) -> replies.Reply:
        notebook.engine.channel.publish(two_cells(request))
        raise UnknownSession("Its session was closed.")

    monkeypatch.setattr(notebook.engine, "_sweep", closed)
    assert "2 cells were finished" in notebook.fails(f"%djinn_sweep resid_post --edit zero {METRIC} -o grid")
    assert np.count_nonzero(~np.isnan(notebook.shell.user_ns["grid"].values)) == 2
    assert "The sweep is not whole: Its session was closed." in notebook.html()
    assert "closed.." not in notebook.html()
    assert "under way" not in notebook.html()


@pytest.mark.parametrize("line", ["%djinn_sweep resid_post --edit zero", "%djinn_path z -> q.5 --edit zero"])
def test_an_interrupted_sweep_is_drawn_and_kept_and_ends_its_cell_in_an_error(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def told(request: Sweep) -> replies.Reply:
        notebook.engine.channel.publish(two_cells(request))
        return replies.Pong()

    monkeypatch.setattr(notebook.engine, "_sweep", told)
    monkeypatch.setattr("djinn_jupyter.magics.screen.Redrawn.draw", interrupt)
    assert notebook.fails(f"{line} {METRIC} -o grid") == "Interrupted. The sweep is not whole: it was interrupted."
    grid = notebook.shell.user_ns["grid"]
    assert grid.interrupted
    assert np.count_nonzero(~np.isnan(grid.values)) == 2
    assert "2 of 40 finished" in notebook.html()


def two_cells(request: Sweep) -> SweepProgressed:
    return SweepProgressed(
        session=request.session, places=(tuple(range(8)), tuple(range(5))), unedited=(0.5,),
        done=2, total=40, cells=(0, 1),
        values=((0.25,), (0.75,)),
    )  # fmt: skip


def test_sessions_say_what_is_swept_and_how_far(notebook: Notebook) -> None:
    notebook.cell('%djinn_use "sweep 1" --new')
    notebook.engine._change(
        "sweep 1", progress=Progress(doing="sweeping", done=40, total=192, counted="cells"), idle_seconds=90.0
    )
    row = next(line for line in notebook.cell("%djinn_sessions").splitlines() if "sweep 1" in line)
    assert "sweeping, 40 of 192 cells" in row
    assert "idle" not in row
    assert "min" not in row
    assert "sweeping, 40 of 192 cells" in notebook.cell("%djinn_status")


def test_a_sweep_goes_on_with_a_grid_in_a_variable(notebook: Notebook) -> None:
    notebook.cell("%djinn_run hello")
    line = f"%djinn_sweep resid_post --edit zero {METRIC}"
    notebook.cell(f"{line} -o grid")
    notebook.cell(f"{line} --continue grid -o grid")
    kept = last(notebook, Sweep).continued
    assert (kept.cells, len(kept.values[0])) == (tuple(range(notebook.shell.user_ns["grid"].values.size)), 1)
    assert "so_far" not in notebook.fails(f"{line} --continue METRIC")
    notebook.cell("three = 3")
    assert notebook.fails(f"{line} --continue three") == "--continue is a Grid, not 3."


def test_an_attribution_is_a_sweep_with_an_estimate(notebook: Notebook) -> None:
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
    notebook.shell.user_ns["clean"] = [1, 2, 3]
    notebook.cell(f"%djinn_attribute z.*[*] --from clean {METRIC} --steps 8 -o scores")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.clean) == ("z.*[*]", ("layer", "head"), (1, 2, 3))
    assert (asked.corrupted, asked.estimate) == ("work/paris.ipynb", Estimate(steps=8))
    assert "scores" in notebook.shell.user_ns
    notebook.cell(f"%djinn_attribute mlp_out --edit zero --positions -1 --window 2 {METRIC}")
    asked = last(notebook, Sweep)
    assert (asked.over, asked.positions, asked.windows) == (("layer", "position"), (-1,), (("layer", 2),))
    assert (type(asked.edit).__name__, asked.estimate) == ("Zero", Estimate())
    assert "needs a metric" in notebook.fails("%djinn_attribute z")
    assert "from 1 to 1,000 steps" in notebook.fails(f"%djinn_attribute z --over layer,head {METRIC} --steps 0")


LOGITS = "--metric \"logit(' Paris') - logit(' Rome')\""


def test_a_path_is_one_request_into_the_present_line(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.shell.user_ns["other"] = [1, 2, 3]
    notebook.cell(f"%djinn_path z -> q.5[0], k.5[0, 1] --from other {LOGITS} --seed 3 -o grid")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.receivers) == ("z", ("layer", "head"), ("q.5[0]", "k.5[0, 1]"))
    assert (asked.clean, asked.corrupted, asked.into) == ("work/paris.ipynb", (1, 2, 3), "clean")
    assert (asked.mode, asked.seed) == ("fast", 3)
    assert "grid" in notebook.shell.user_ns
    notebook.cell(f"%djinn_path mlp_out->logits --edit zero --over layer,position --exact {LOGITS}")
    asked = last(notebook, Sweep)
    assert (asked.site, asked.over, asked.receivers, asked.mode) == (
        "mlp_out",
        ("layer", "position"),
        ("logits",),
        "exact",
    )
    assert type(asked.edit).__name__ == "Zero"
    notebook.shell.user_ns["pairs"] = [([1, 2], [1, 3]), ([4, 5], [4, 6])]
    notebook.cell(f"%djinn_path z -> q.5[0] --prompts pairs {LOGITS} -o grid")
    asked = last(notebook, Sweep)
    assert (asked.clean, asked.corrupted, asked.into) == ((4, 5), (4, 6), "clean")
    assert notebook.shell.user_ns["grid"].over == ("pair", "layer", "head")
    assert "leave --from out" in notebook.fails(f"%djinn_path z -> q.5[0] --prompts pairs --from pairs {LOGITS}")
    asked: list[Any] = []
    monkeypatch.setattr(paths, "path", lambda *line, **given: asked.append(given) or path(*line, **given))
    notebook.shell.user_ns["pairs"] = [("The capital of France is", "The capital of Italy is")]
    notebook.fails(f"%djinn_path z -> q.5[0] --prompts pairs --adapter nobody {LOGITS}")
    assert asked[0]["adapter"] == "nobody"


@pytest.fixture
def beside(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """Another engine, which `--beside 2` means."""
    engine = RemoteEngine(EngineDouble().channel)
    found = {"2": engine}
    monkeypatch.setattr(notebook.state.client, "beside", lambda here, where, progress: found[where], raising=False)
    return engine


def test_pairs_of_a_sweep_or_of_paths_and_shards_of_a_collection(
    notebook: Notebook, beside: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    for module in (sweeping, collecting):
        spread = module.spread
        monkeypatch.setattr(
            module, "spread", lambda engines, pieces, plain=spread: given.append(engines) or plain(engines, pieces)
        )
    notebook.cell("pairs = [([1, 2], [1, 3])] * 4\nprompts = [[1, 2]] * 4")
    notebook.cell("%djinn_sweep resid_post --prompts pairs --metric logit(3) --beside 2 -o grid")
    assert notebook.shell.user_ns["grid"].values.shape[0] == 4
    notebook.cell("%djinn_path z -> logits --prompts pairs --metric logit(3) --beside 2 -o paths")
    assert notebook.shell.user_ns["paths"].values.shape[0] == 4
    notebook.cell(f"%djinn_collect resid_post.4 --prompts prompts --to {tmp_path} --shard-prompts 1 --beside 2 -o acts")
    assert len(notebook.shell.user_ns["acts"]) == 4
    engines = (notebook.state.engine, beside)
    assert given == [engines, engines, [one.channel for one in engines]]
