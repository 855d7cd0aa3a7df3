"""What is mistyped is answered in one line; a prompt is taken as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from djinn_jupyter.errors import DjinnError, EngineUnavailable
from djinn_jupyter.magics import load_ipython_extension
from djinn_jupyter.magics.parsing import OneLine
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook
from tests.magics.test_magics import last

METRIC = "--metric \"logit(' Paris') - logit(' Rome')\""
UNLOADED = [
    "%djinn_break 4",
    "%djinn_run x",
    "%djinn_sessions",
    "%djinn_resume",
    "%djinn_inspect",
    "%djinn_edit zero",
    "%djinn_sleep",
]


def test_before_a_load_every_magic_says_to_load(bare: Notebook) -> None:
    for line in UNLOADED:
        assert bare.fails(line) == "No model is loaded in this notebook; load one first, for example: %djinn_load demo"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("%djinn_load nowhere", "There is no model 'nowhere'"),
        ("%djinn_load", "required: model"),
        ("%djinn_break nonsense!", "is not a site"),
        ('%djinn_break 4 --when "step', "A quote in this line is not closed"),
        ("%djinn_break 4 -o 2x", "'2x' is not a name for a variable"),
        ("%djinn_break 4 --sometimes", "There is no option --sometimes."),
        ("%djinn_break 4 --wehn x", "There is no option --wehn; did you mean --when?"),
        ("%djinn_run --max-tokens -1 x", "--max-tokens: expected int >= 0."),
        ('%djinn_run "x" --max-new-tokens 3', "There is no option --max-new-tokens; did you mean --max-tokens?"),
        ("%djinn_loss The capital", "'The capital' has no place here; %djinn_loss? says what can be given."),
        ("%djinn_lens --top 3", "There is no option --top; did you mean -k?"),
        ("%djinn_run", "There is no prompt; write one, for example: %djinn_run The capital"),
        ("%djinn_run --text-from nothing", "This notebook knows no 'nothing'"),
        ("%djinn_run --text-from print", "print is no text but builtin_function_or_method"),
        ("%djinn_sweep z --edit zero --samples 3 --metric logit(3)", "add --noise POSITIONS"),
        ("%djinn_run --temperature warm x", "--temperature takes a number, not 'warm'."),
        ("%djinn_run --temperature nan x", "A temperature is 0 (greedy) or more; it cannot be nan."),
        ("%djinn_run --ids nothing", "This notebook knows no 'nothing': write a value"),
        ("%djinn_run --ids 1/0", "'1/0' has no value here (ZeroDivisionError"),
        ("%%djinn_run here\nand here", "Give the prompt once"),
        ("%djinn_step 0", "0 is no number of steps"),
        ("%djinn_step --token --point", "write one of --token and --point"),
        ("%djinn_back 1 --layer --token", "write one of --layer and --token"),
        ("%djinn_resume", "is not stopped"),
        ("%djinn_lens 4 --layers", "leave the site out"),
        ("%djinn_lens 4 --token x", "--token belongs to --layers"),
        ("%djinn_edit", "'' is no edit; write one of: scale 0.9;"),
        ("%djinn_edit double", "'double' is no edit"),
        ("%djinn_edit scale", "scale takes 1 argument: scale 0.9"),
        ("%djinn_edit scale 2 --coef 3", "--coef belongs to add, not to scale"),
        ("%djinn_edit zero --from-site 3", "belong to patch_from, not to zero"),
        ("%djinn_edit zero --torch", "--torch belongs to the cell form"),
        ("%djinn_edit zero --revert", "--revert, --on and --off stand alone"),
        ("%djinn_edit patch_from oslo", "There is no session 'oslo'. There are: paris."),
        ("%djinn_steer 4 add 'no such name'", "has no value here"),
        ("%djinn_diff paris", "neither stands at a stop nor has finished"),
        ("%djinn_swap away", "way is one of 'out', 'in', not 'away'."),
        ("%djinn_swap in --disk", "it belongs to %djinn_swap out"),
        ("%djinn_rest -1", "A rest lasts 0 to 31536000 seconds (a year); it cannot last -1.0."),
        ("%djinn_checkpoint --drop", "Which one? Write the name"),
        ("%djinn_restore noon --replace", "belong to --as NAME"),
        ("%djinn_restore noon --as rome --session paris", "Name the session once"),
        ("%djinn_accept", "Session paris is exact"),
        ("%djinn_sweep resid_post --from [1,2,3]", "A sweep needs a metric"),
        (f"%djinn_sweep resid_post --over depth {METRIC}", "not over depth"),
        (f'%djinn_sweep resid_post --edit "scale \'2" {METRIC}', "A quote in this line is not closed: scale '2"),
        ("%djinn_circuit ~nobody-here/x --edges 3", "'~nobody-here/x' names no file"),
        ("%djinn_vram --of 3", "'3' is no trace of memory but float: keep one with -o."),
        ("%djinn_path z -> q.5[0] --from paris", "A path needs a metric"),
        (f"%djinn_path z q.5[0] --from paris {METRIC}", "A path is written SENDER -> RECEIVERS"),
        (f"%djinn_path z -> q.5[0] {METRIC}", "A path needs the line whose values go along it"),
        (f"%djinn_path z -> q.5[0] --from nobody {METRIC}", "There is no session 'nobody'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(notebook: Notebook, line: str, answer: str) -> None:
    assert answer in notebook.fails(line)


def test_an_engine_that_died_says_so_and_loading_again_goes_on(notebook: Notebook) -> None:
    notebook.engine.dead = True
    assert notebook.fails("%djinn_break 4") == "The engine of demo has ended; load it again."
    notebook.cell("%djinn_load demo\n%djinn_break 4")


def test_a_session_of_another_kernel_is_not_stopped_silently(notebook: Notebook) -> None:
    notebook.cell("%djinn_use oslo --new")
    notebook.engine._change("oslo", holder="kernel-2")
    assert "add --force" in notebook.fails("%djinn_stop")
    assert "stopped" in notebook.cell("%djinn_stop --force")


def test_an_error_names_a_notebooks_session_as_it_is_shown(notebook: Notebook) -> None:
    said = notebook.fails("%djinn_resume")
    assert "'paris'" in said
    assert ".ipynb" not in said


def test_what_a_stop_does_not_have_is_answered_with_what_it_has(
    stopped: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "reads 'Spain'. Its tokens are: 'The', ' capital'" in stopped.fails("%djinn_inspect --positions Spain")
    assert stopped.fails("%djinn_lens -k 0").startswith("-k: expected int >= 1")
    assert "Positions are also -1, 0,4, 2:5 or last." in stopped.fails("%djinn_edit zero --positions 2;5")
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    assert "run `import torch` first" in stopped.fails("%%djinn_edit --torch\nh *= 2")


VALUES = ("~nobody-here/x", "a" * 300, "nan", "['a']", "words")
ENDING = ("djinn_unload",)  # after which nothing else is asked


def magics() -> list[str]:
    """The names of all magics, from the shell that they are registered in."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    found = sorted(name for name in shell.magics_manager.magics["line"] if name.startswith("djinn_"))
    InteractiveShell.clear_instance()
    return [name for name in found if name not in ENDING]


def lines(magic: Any, name: str, value: str) -> list[str]:
    """The line of a magic with a value for all that it takes by place, and that of each option beside."""
    options = [one for one in magic.parser._actions if one.option_strings and one.nargs != 0]
    placed = [one for one in magic.parser._actions if not one.option_strings]
    needed = " ".join("4" for one in placed if one.nargs not in ("?", "*"))
    return [
        f"%{name} " + " ".join(value for _ in placed),
        *(f"%{name} {needed} {one.option_strings[-1]} {value}" for one in options),
    ]


def no_engine(engine: object, to: str, **_: object) -> None:
    raise EngineUnavailable(f"No engine {to!r} runs.")


@pytest.mark.parametrize("name", magics())
def test_any_value_is_taken_or_answered_in_one_line(
    stopped: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a value may be the name of a file
    stopped.shell.user_ns["words"] = "some words"
    stopped.client.beside = no_engine
    magic = stopped.shell.magics_manager.magics["line"][name]
    for value in VALUES:
        for line in lines(magic, name, value):
            raised = stopped.shell.run_cell(line).error_in_exec
            assert raised is None or isinstance(raised, OneLine | DjinnError), (line[:200], raised)


def test_a_prompt_is_taken_as_it_stands(notebook: Notebook) -> None:
    for line, prompt in [
        ("%djinn_run The king's hat", "The king's hat"),
        ("%djinn_run --max-tokens 5  two  spaces", "two  spaces"),
        ('%djinn_run "ends with a space " --max-tokens 5', "ends with a space "),
        ('%djinn_run --max-tokens 5 "quoted --max-tokens"', "quoted --max-tokens"),
        ('%djinn_run "one" and "two"', '"one" and "two"'),
        ("%%djinn_run --max-tokens 5\ntwo\nlines\n", "two\nlines"),
    ]:
        notebook.cell(line)
        request = last(notebook, requests.Run)
        assert request.text == prompt
        assert request.max_new_tokens == (5 if "--max-tokens 5" in line else 20)
    for cell, prompt in [
        ("%djinn_run What is the capital of France?", "What is the capital of France?"),
        ("%djinn_run Is it??", "Is it??"),
        ("%djinn_run --max-tokens 3 Where is (Paris)?", "Where is (Paris)?"),
        ("done = %djinn_run Who is Ada?", "Who is Ada?"),
        ("if True:\n    %djinn_run Who, Ada?\n    seen = 1", "Who, Ada?"),
        ("%djinn_run What \\\n  is it?", "What    is it?"),
        ("%%djinn_run --max-tokens 3\nWhat is it?", "What is it?"),
    ]:
        notebook.cell(cell)
        assert last(notebook, requests.Run).text == prompt
    notebook.cell("text = 'costs $x {x} --max-tokens 3'")
    assert "stands behind" not in notebook.cell("%djinn_run --text-from text")
    assert last(notebook, requests.Run).text == "costs $x {x} --max-tokens 3"
    said = notebook.cell("%djinn_run hi --max-tokens 3")
    assert "--max-tokens stands behind the prompt and is part of it: options go first." in said
    request = last(notebook, requests.Run)
    assert (request.text, request.max_new_tokens) == ("hi --max-tokens 3", 20)


def test_nothing_is_put_into_a_prompt_or_a_condition_in_place_of_variables(notebook: Notebook) -> None:
    for form in ["%djinn_run {}", "%%djinn_run\n{}"]:
        notebook.cell("x, name = 1, 'Paris'")
        for prompt in ("$x^2$ and {name}", "{x}", "$name {{x}} $$x"):
            notebook.cell(form.replace("{}", prompt))
            assert last(notebook, requests.Run).text == prompt
    notebook.cell("x = 1")
    notebook.cell("%djinn_break 4 --when \"token in {'$x', '{x}'}\"")
    assert last(notebook, requests.SetBreakpoint).when == "token in {'$x', '{x}'}"


def test_a_question_about_a_magic_stays_one(notebook: Notebook) -> None:
    for line in ["%djinn_run?", "%djinn_run??", "?%djinn_run", "len?"]:
        assert "run_line_magic('pinfo" in notebook.shell.transform_cell(f"{line}\nx = 1")
    assert "no option --x" in notebook.fails("%djinn_break 4 --x?")


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


def test_a_comment_behind_options_is_none_of_them(stopped: Notebook) -> None:
    for line in ["%djinn_loss   # of the present line, isn't it", "%djinn_break 4  #5"]:
        stopped.cell(line)
        assert "#" not in str([getattr(one, "site", "") for one in stopped.engine.channel.requests])
    stopped.cell("""%djinn_break 5 --when "prob(' #') > 0.5" # a comment""")
    assert "prob(' #') > 0.5" in str(last(stopped, requests.SetBreakpoint))
    stopped.cell("%djinn_run Count to # 5")
    assert last(stopped, requests.Run).text == "Count to # 5"
