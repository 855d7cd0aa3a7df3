"""`%djinn_collect` collects from a file or a variable, and says what lies where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.methods.datasets.api import scoring
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.wire import replies, requests
from tests.magics.conftest import Notebook, last


def test_a_variable_of_prompts_is_collected_and_kept(notebook: Notebook, tmp_path: Path) -> None:
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5]]
    folder = tmp_path / "acts"
    said = notebook.cell(
        f"%djinn_collect resid_post.4 z.2[1] --prompts prompts --positions -1 --to {folder} --dtype float16 -o acts"
    )
    asked = last(notebook, Collect)
    assert (asked.sites, asked.positions, asked.dtype) == (("resid_post.4", "z.2[1]"), (-1,), "float16")
    assert asked.prompts == ((1, 2, 3), (4, 5))
    assert "resid_post.4  [2, 4] float32" in said
    assert "2 prompts in 1 shard" in said
    assert notebook.shell.user_ns["acts"]["z.2[1]"].shape == (2, 4)
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_a_file_has_a_prompt_a_line_and_a_star_is_every_layer(notebook: Notebook, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"tokens": [1, 2]}\n\n[3]\n')
    notebook.cell(f"%djinn_collect mlp_out.*, z.2[1, 3] --prompts {file} --to {tmp_path / 'acts'} --shard-prompts 1")
    asked = last(notebook, Collect)
    assert asked.sites == (*(f"mlp_out.{layer}" for layer in range(8)), "z.2[1,3]")
    assert (asked.shard, asked.first, asked.last, asked.prompts) == (1, 1, True, ((3,),))


def test_an_interrupt_says_that_the_same_line_goes_on(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(request: Collect) -> replies.Reply:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook.engine, "_collect", interrupted)
    notebook.shell.user_ns["prompts"] = [[1]]
    said = notebook.fails(f"%djinn_collect z.1 --prompts prompts --to {tmp_path}")
    assert "Whole shards are kept" in said
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("z.1 --to acts", "needs prompts and a folder"),
        ("z.1 --prompts prompts", "needs prompts and a folder"),
        ("z.1 --prompts nothing --to acts", "neither a variable nor a file 'nothing'"),
        ("z.1 --prompts prompts --to acts --positions 1:", "name both ends of a range"),
        ("z.1 --prompts prompts --to acts --shard-prompts 0", "A shard has 1 to"),
        ("z.1 --prompts empty --to acts", "There are no prompts"),
        ("z.1 --prompts blank --to acts", "Prompt 1 (counted from 0) has no tokens"),
        ("z.1 --prompts text --to acts", "this is one str"),
    ],
)
def test_what_cannot_be_meant_is_one_line(notebook: Notebook, line: str, said: str) -> None:
    notebook.shell.user_ns |= {"prompts": [[1]], "empty": [], "blank": [[1], []], "text": "a prompt"}
    assert said in notebook.fails(f"%djinn_collect {line}")


@pytest.mark.parametrize(
    ("broken", "said"), [(IllegalMove("Session 'score 1' was closed."), "was closed"), (KeyboardInterrupt(), "Interr")]
)
def test_losses_of_the_first_prompts_are_kept_where_the_measurement_ends(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, broken: BaseException, said: str
) -> None:
    monkeypatch.setattr("djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 4)
    ask_for = scoring.ask_for

    def break_in(channel: Any, request: Any) -> Any:
        if isinstance(request, Score) and request.first:
            raise broken
        return ask_for(channel, request)

    monkeypatch.setattr(scoring, "ask_for", break_in)
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5, 6]]
    assert said in notebook.fails("%djinn_loss --prompts prompts -o losses")
    assert notebook.shell.user_ns["losses"].tokens == ((1, 2, 3),)


def test_the_loss_of_the_line_and_of_prompts_is_said_with_the_rules_that_held(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_loss -o losses")
    asked = last(notebook, Score)
    assert (asked.prompts, asked.rules_of, asked.what) == (("work/paris.ipynb",), "work/paris.ipynb", "loss")
    assert "Loss 0.5000 a token, perplexity 1.649: 4 tokens of 1 prompt" in said
    assert notebook.shell.user_ns["losses"][0].tolist() == [0.5] * 4
    notebook.shell.user_ns |= {"prompts": [[1, 2, 3], [4, 5]], "text": "a text"}
    assert "3 tokens of 2 prompts" in notebook.cell("%djinn_loss --prompts prompts")
    notebook.cell("%djinn_loss --text-from text")
    assert last(notebook, requests.Tokenize).text == "a text"
    assert "Give the text once" in notebook.fails("%djinn_loss --prompts prompts --text-from text")
    notebook.cell("%djinn_steer 4 scale 0.5")
    assert "\nunder rule 1: " in notebook.cell("%djinn_loss")
    notebook.shell.user_ns["prompts"] = [[1, 2], [3]]
    assert "Prompt 1 (counted from 0) has one token" in notebook.fails("%djinn_loss --prompts prompts")
