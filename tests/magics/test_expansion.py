"""Every magic replaces `$x` and `{x}` by values of Python, except where its text is taken as it stands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import pytest

from djinn_jupyter.magics.parsing import TEXTS, expanded, is_literal
from djinn_jupyter.magics.table import CELL_MAGICS, MODULES
from djinn_jupyter.wire.requests import Run
from tests.magics.conftest import Notebook, last

FORMS: Final = {"{v}": "7", "$v": "7", "{v + 1}": "8", "{names['a b']}": "kept", "{v}:{v + 1}": "7:8", "{{v}}": "{v}"}
TOLD: Final = {"v": 7, "names": {"a b": "kept"}}
LITERAL: Final = {
    "djinn_break": {"when"},
    "djinn_steer": {"when"},
    "djinn_run": {"prompt", "stop", "metrics", "measure"},
    "djinn_resume": {"measure"},
    "djinn_where": {"measure"},
    "djinn_edit": {"measure"},
    "djinn_lens": {"token"},
    "djinn_sweep": {"metrics"},
    "djinn_path": {"metrics"},
    "djinn_attribute": {"metrics"},
    "djinn_edges": {"metric"},
    "djinn_graph": {"metric"},
    "djinn_direct": {"prompt", "metric"},
    "djinn_text": {"metric"},
    "djinn_study": {"note", "title"},
}


def magic(notebook: Notebook, name: str, kind: str = "line") -> Any:
    return notebook.shell.magics_manager.magics[kind].get(name)


def parsed(notebook: Notebook, monkeypatch: pytest.MonkeyPatch, name: str, words: str, body: str | None = None) -> str:
    """Return the words of a line as its parser gets them from IPython, joined; the magic itself does not run."""
    got: list[str] = []

    def parse(given: list[str]) -> argparse.Namespace:
        got.extend(given)
        raise KeyboardInterrupt

    parser = magic(notebook, name).parser
    monkeypatch.setattr(parser, "parse_args", parse)
    said = notebook.fails(f"%{name} {words}" if body is None else f"%%{name} {words}\n{body}")
    assert said.startswith("Interrupted"), said
    return " ".join(got)


def arguments(notebook: Notebook, name: str) -> Iterator[tuple[argparse.Action, str]]:
    """Yield the arguments of a magic that take a value, each with the words before its value."""
    for action in magic(notebook, name).parser._actions:
        if action.nargs != 0:
            yield action, f"{action.option_strings[-1]} " if action.option_strings else ""


@pytest.mark.parametrize("name", MODULES)
def test_each_argument_of_each_magic_is_expanded_or_stands_as_it_is(
    bare: Notebook, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bare.shell.user_ns.update(TOLD)
    for action, before in arguments(bare, name):
        for form, value in FORMS.items():
            shown = form if action.dest in LITERAL.get(name, ()) else value
            assert parsed(bare, monkeypatch, name, f"{before}{form}") == f"{before}{shown}", (action.dest, form)


@pytest.mark.parametrize("name", MODULES)
def test_literal_arguments_are_the_known_ones_and_are_marked_for_the_reader(bare: Notebook, name: str) -> None:
    literal = {action.dest: action for action, _ in arguments(bare, name) if is_literal(action)}
    assert set(literal) == LITERAL.get(name, set())
    assert all(one.metavar in TEXTS or one.dest == "prompt" for one in literal.values())


@pytest.mark.parametrize("name", CELL_MAGICS)
def test_the_first_line_of_a_cell_is_expanded(bare: Notebook, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bare.shell.user_ns.update(TOLD)
    assert parsed(bare, monkeypatch, name, "--session {v}", "$v and {v}") == "--session 7"


def test_the_body_of_a_cell_stands_as_it_is(notebook: Notebook) -> None:
    notebook.shell.user_ns.update(TOLD)
    notebook.cell("%%djinn_run --max-tokens {v}\n$v and {v}")
    asked = last(notebook, Run)
    assert (asked.max_new_tokens, asked.text) == (7, "$v and {v}")


@pytest.mark.parametrize("name", MODULES)
def test_a_line_without_texts_is_expanded_like_ipython_does(bare: Notebook, name: str) -> None:
    """Word by word, so that an unknown name leaves only its own word."""
    bare.shell.user_ns.update(TOLD)
    parser = magic(bare, name).parser
    if any(action.nargs == argparse.REMAINDER for action in parser._actions):
        return
    for line in ("{v} $v", "-3 {v:>4}", "{v!r} $names.keys", "a{v}b '$v' \"{v + 1}\"", "$$v {{v}}", "nothing"):
        assert expanded(parser, line, TOLD) == bare.shell.var_expand(line)
    assert expanded(parser, "{v} {nobody} $nobody", TOLD) == "7 {nobody} $nobody"


def test_an_expression_that_ends_in_an_option_ends_its_literal_part(bare: Notebook) -> None:
    parser = magic(bare, "djinn_break").parser
    line = '{v} --when token in {"v"} and {v} -o {v}'
    assert expanded(parser, line, TOLD) == '7 --when token in {"v"} and {v} -o 7'
    assert expanded(parser, '4 --when="{v} a {v}" --session={v}', TOLD) == '4 --when="{v} a {v}" --session=7'


def test_a_prompt_after_two_dashes_stands_as_it_is(bare: Notebook) -> None:
    assert expanded(magic(bare, "djinn_run").parser, "--seed {v} -- {v}", TOLD) == "--seed 7 -- {v}"
