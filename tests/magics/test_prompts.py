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
