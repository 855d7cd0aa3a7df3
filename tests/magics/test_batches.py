"""`%djinn_run` of many rows: a list of prompts, or samples of one; and samples of a stop."""

from __future__ import annotations

import pytest

from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.running import MetricsRead, ReadMetrics
from tests.magics.conftest import Notebook, last


def test_samples_are_rows_in_one_table_and_kept(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_run --samples 3 --temperature 1 --seed 4 -o rows The capital of France is")
    assert [row.session.name for row in notebook.shell.user_ns["rows"]] == ["paris/0", "paris/1", "paris/2"]
    asked = last(notebook, requests.Run)
    assert (asked.session, asked.sampling.seed, asked.extend, asked.text) == ("paris/2", 6, True, None)
    assert asked.mode == "exact"
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["paris/0", "paris/1", "paris/2"], said
    assert "prompt" not in said
    assert "paris/2" in notebook.html()
    notebook.cell("%djinn_run --samples 2 --temperature 1 hello")
    notebook.cell("%djinn_use paris/1")
    notebook.cell("%djinn_run --continue and on")
    assert last(notebook, requests.Run).session == "paris/1"


def test_a_list_of_texts_in_a_variable_is_run_as_rows(notebook: Notebook) -> None:
    notebook.cell("texts = ['one', 'two']")
    notebook.cell("%djinn_run --text-from texts --max-tokens 5 -o rows")
    runs = [r for r in notebook.engine.channel.requests if isinstance(r, requests.Run)]
    assert [(run.session, run.text, run.max_new_tokens) for run in runs] == [
        ("paris/0", "one", 5),
        ("paris/1", "two", 5),
    ]
    notebook.cell("ids = [[1, 2], [3]]\n%djinn_run --ids ids")
    assert last(notebook, requests.Run).tokens == (3,)


def test_samples_of_a_stop(stopped: Notebook) -> None:
    stopped.cell("%djinn_resume --samples 2 --seed 7 --fast -o rows")
    assert last(stopped, requests.Resume).mode == "fast"
    forks = [r for r in stopped.engine.channel.requests if isinstance(r, requests.Fork)]
    assert [(fork.name, fork.seed) for fork in forks] == [("paris/0", 7), ("paris/1", 8)]
    assert all(fork.stop == stopped.engine.stops["work/paris.ipynb"].stop for fork in forks)
    assert [type(row).__name__ for row in stopped.shell.user_ns["rows"]] == ["Finished", "Finished"]


def test_a_row_that_fails_is_told_and_the_others_are_kept(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = notebook.engine._finish

    def full(name: str) -> replies.Reply:
        if name.endswith("/1"):
            raise SlabFull("There is no room.")
        return finish(name)

    monkeypatch.setattr(notebook.engine, "_finish", full)
    notebook.cell("texts = ['one', 'two', 'three']")
    said = notebook.fails("%djinn_run --text-from texts -o rows")
    assert said.startswith("1 of 3 rows failed, paris/1 first: There is no room.")
    assert [type(row).__name__ for row in notebook.shell.user_ns["rows"]] == ["Finished", "SlabFull", "Finished"]
    assert "failed: There is no room." in notebook.html()


def test_coefficients_are_rows_and_each_metric_a_picture(notebook: Notebook) -> None:
    notebook.cell("v = __import__('numpy').ones(16)\n%djinn_steer 4 add v")
    said = notebook.cell(
        "%djinn_run --coefs 2,0.5 --rule 1 --max-tokens 0 --metric \"logit(' a')\" --metric \"logit(' b')\" -o rows hi"
    )
    forks = [r for r in notebook.engine.channel.requests if isinstance(r, requests.Fork)]
    assert [(fork.name, fork.coef, fork.rule) for fork in forks] == [("paris/0", 2, 1), ("paris/1", 0.5, 1)]
    assert [row.session.name for row in notebook.shell.user_ns["rows"]] == ["paris/0", "paris/1"]
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][:2] == ["session", "coefficient"]
    assert [line[:2] for line in lines[1:3]] == [["paris/0", "2"], ["paris/1", "0.5"]]
    assert ["coefficient", "logit('", "b')"] in lines
    assert lines[-2:] == [["0.5", "-1.000"], ["2", "-2.000"]]
    assert "logit(' a'), behind the prompt" in said
    assert notebook.html().count("%3Cpolyline") == 2
    assert notebook.shell.user_ns["rows"].columns() == {
        "coefficient": [2.0, 0.5],
        "text": [row.text for row in notebook.shell.user_ns["rows"]],
        "logit(' a')": [0.0, 1.0],
        "logit(' b')": [-2.0, -1.0],
    }


def test_the_metric_of_rows_that_go_on_is_read_behind_the_prompt(notebook: Notebook) -> None:
    """Each coefficient runs its prompt for no new token first, and the metric is read there."""
    notebook.cell("v = __import__('numpy').ones(16)\n%djinn_steer 4 add v")
    asked = len(notebook.engine.channel.requests)
    notebook.cell("%djinn_run --coefs 2,0.5 --max-tokens 3 --metric \"logit(' a')\" -o rows hi")
    kinds = requests.Run | ReadMetrics
    later = [r for r in notebook.engine.channel.requests[asked:] if isinstance(r, kinds)]
    told = [r.max_new_tokens if isinstance(r, requests.Run) else r.session for r in later]
    assert told[1:] == [0, 0, "paris/0", "paris/1", 3, 3], "behind the question whether the metric is one"
    assert list(notebook.shell.user_ns["rows"].columns()) == ["coefficient", "text", "logit(' a')"]


def test_a_wrong_metric_ends_no_row_of_an_earlier_batch(notebook: Notebook) -> None:
    notebook.cell("v = __import__('numpy').ones(16)\n%djinn_steer 4 add v")
    notebook.cell("%djinn_run --samples 2 --temperature 1 hi")
    asked = len(notebook.engine.channel.requests)
    assert "A metric reads logits." in notebook.fails("%djinn_run --coefs 1,2 --metric surprise hi")
    assert {"paris/0", "paris/1"} <= set(notebook.engine.sessions)
    later = notebook.engine.channel.requests[asked:]
    assert not [r for r in later if isinstance(r, requests.Close | requests.Fork | requests.Run)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%djinn_run --metric \"logit(' a')\" hi", "add --coefs, as 0,0.5,1"),
        ("%djinn_run --samples 2 --metric \"logit(' a')\" hi", "add --coefs, as 0,0.5,1"),
        ("%djinn_run --coefs 1,x hi", "--coefs is a list of numbers, as 0,0.5,1; '1,x' is none."),
        ("%djinn_run --coefs 1,2 hi", "A dose-response gives a steering rule its coefficients"),
        ("%djinn_run --rule 1 hi", "add --coefs, as 0,0.5,1"),
        ("%djinn_run --force hi", "--force replaces rows"),
        ("%djinn_run --coefs 1 --measure a hi", "--effect measures one stop"),
        ("%djinn_run --samples 0 hi", "A batch has 1 to 4096 rows, not 0"),
        ("%djinn_run --samples 2 --effect hi", "--effect measures one stop"),
        ("%djinn_resume --force", "--force belongs to --samples"),
        ("%djinn_resume --samples 2", "is not stopped"),
    ],
)
def test_what_cannot_be_meant(notebook: Notebook, line: str, said: str) -> None:
    assert said in notebook.fails(line)


@pytest.mark.parametrize("magic", ["%djinn_run --effect {} The capital of France is", "%djinn_resume --effect {}"])
def test_the_effect_of_a_run_that_ended_is_told(stopped: Notebook, magic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.cell("%djinn_clear")
    asked: list[tuple[str, ...]] = []

    def read(request: ReadMetrics) -> MetricsRead:
        asked.append(request.metrics)
        return MetricsRead(values=(7.5 - len(asked), 0.25, 3.0))

    monkeypatch.setattr(stopped.engine, "_readmetrics", read)
    said = stopped.cell(magic.format('--measure " Mary" --measure 5'))
    assert "the run ended at no stop, so that there is no edit to compare without; of the last new token: " in said
    assert "' Mary' 25 % (logit 6.50, rank 3), '5' 25 % (logit 5.50, rank 3), 1.00 between their logits" in said
    assert asked == [(f"logit({one})", f"prob({one})", f"rank({one})") for one in ("' Mary'", "'5'")]
