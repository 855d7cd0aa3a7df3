"""A prompt is the text as it stands: nothing is put into it and nothing taken out."""

from __future__ import annotations

import pytest

from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook
from tests.magics.test_magics import last


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ("%djinn_run The king's hat", "The king's hat"),
        ("%djinn_run --max-tokens 5  two  spaces", "two  spaces"),
        ('%djinn_run "ends with a space " --max-tokens 5', "ends with a space "),
        ('%djinn_run --max-tokens 5 "quoted --max-tokens"', "quoted --max-tokens"),
        ('%djinn_run "one" and "two"', '"one" and "two"'),
        ("%%djinn_run --max-tokens 5\ntwo\nlines\n", "two\nlines"),
    ],
)
def test_a_prompt_is_taken_as_it_stands(notebook: Notebook, line: str, prompt: str) -> None:
    notebook.cell(line)
    request = last(notebook, requests.Run)
    assert request.text == prompt
    assert request.max_new_tokens == (5 if "--max-tokens 5" in line else 20)


@pytest.mark.parametrize("form", ["%djinn_run {}", "%%djinn_run\n{}"])
def test_nothing_is_put_into_a_prompt_in_place_of_variables(notebook: Notebook, form: str) -> None:
    notebook.cell("x, name = 1, 'Paris'")
    for prompt in ("$x^2$ and {name}", "{x}", "$name {{x}} $$x"):
        notebook.cell(form.replace("{}", prompt))
        assert last(notebook, requests.Run).text == prompt


def test_nothing_is_put_into_a_condition_in_place_of_variables(notebook: Notebook) -> None:
    notebook.cell("x = 1")
    notebook.cell("%djinn_break 4 --when \"token in {'$x', '{x}'}\"")
    assert last(notebook, requests.SetBreakpoint).when == "token in {'$x', '{x}'}"


def test_the_text_of_a_variable_is_a_prompt(notebook: Notebook) -> None:
    notebook.cell("text = 'costs $x {x} --max-tokens 3'")
    assert "stands behind" not in notebook.cell("%djinn_run --text-from text")
    assert last(notebook, requests.Run).text == "costs $x {x} --max-tokens 3"


def test_an_option_behind_the_prompt_is_part_of_it_and_pointed_out(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_run hi --max-tokens 3")
    assert "--max-tokens stands behind the prompt and is part of it: options go first." in said
    request = last(notebook, requests.Run)
    assert (request.text, request.max_new_tokens) == ("hi --max-tokens 3", 20)


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ("%djinn_run What is the capital of France?", "What is the capital of France?"),
        ("%djinn_run Is it??", "Is it??"),
        ("%djinn_run --max-tokens 3 Where is (Paris)?", "Where is (Paris)?"),
        ("done = %djinn_run Who is Ada?", "Who is Ada?"),
        ("if True:\n    %djinn_run Who, Ada?\n    seen = 1", "Who, Ada?"),
        ("%djinn_run What \\\n  is it?", "What    is it?"),
        ("%%djinn_run --max-tokens 3\nWhat is it?", "What is it?"),
    ],
)
def test_a_prompt_may_end_in_a_question_mark(notebook: Notebook, cell: str, prompt: str) -> None:
    notebook.cell(cell)
    assert last(notebook, requests.Run).text == prompt


def test_every_magic_reads_a_line_that_ends_in_a_question_mark(notebook: Notebook) -> None:
    assert "no option --x" in notebook.fails("%djinn_break 4 --x?")


@pytest.mark.parametrize("line", ["%djinn_run?", "%djinn_run??", "?%djinn_run", "len?"])
def test_a_question_about_a_magic_stays_one(notebook: Notebook, line: str) -> None:
    assert "run_line_magic('pinfo" in notebook.shell.transform_cell(f"{line}\nx = 1")


def test_names_are_expanded_outside_of_texts(notebook: Notebook) -> None:
    notebook.cell("layer, count = 4, 7")
    notebook.cell('for layer in (3, 5):\n    %djinn_break {layer} --when "step == 0"')
    assert last(notebook, requests.SetBreakpoint).site == "5"
    notebook.cell("def at(place):\n    %djinn_break $place\nat(2)")
    assert last(notebook, requests.SetBreakpoint).site == "2"
    notebook.cell("%djinn_run --max-tokens {count} --stop {x} cost {count}, $count")
    request = last(notebook, requests.Run)
    assert (request.max_new_tokens, request.stop, request.text) == (7, ("{x}",), "cost {count}, $count")
    notebook.cell("%djinn_run --max-tokens={count} again")
    assert last(notebook, requests.Run).max_new_tokens == 7


@pytest.mark.parametrize("line", ["%djinn_loss   # of the present line, isn't it", "%djinn_break 4  #5"])
def test_a_comment_behind_options_is_none_of_them(stopped: Notebook, line: str) -> None:
    stopped.cell(line)
    assert "#" not in str([getattr(one, "site", "") for one in stopped.engine.channel.requests])


def test_a_hash_within_quotes_is_no_comment(stopped: Notebook) -> None:
    stopped.cell("""%djinn_break 5 --when "prob(' #') > 0.5" # a comment""")
    assert "prob(' #') > 0.5" in str(last(stopped, requests.SetBreakpoint))
    stopped.cell("%djinn_run Count to # 5")
    assert last(stopped, requests.Run).text == "Count to # 5"
