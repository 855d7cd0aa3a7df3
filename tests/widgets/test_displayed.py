"""One mechanism displays every value of ours; Jupyter, IPython and marimo take from it what they can draw."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from jupyter_client.session import json_packer

import djinn_jupyter as dj
from djinn_jupyter.api.interrupts import WorkInterrupted
from djinn_jupyter.api.tables import Displayed
from djinn_jupyter.displayed import ShownError
from djinn_jupyter.errors import BY_CODE, from_code
from djinn_jupyter.widgets.html import Html
from djinn_jupyter.widgets.view import View

PACKAGE = Path(dj.__file__).parent
PROTOCOLS = {"_repr_mimebundle_", "_repr_html_", "_display_", "_mime_", "_ipython_display_"}


def test_displays_are_defined_in_one_place() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name in path.read_text() for name in PROTOCOLS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in PROTOCOLS
    }
    assert found == {"displayed.py"}


@pytest.mark.parametrize("code", BY_CODE)
def test_an_error_is_a_card_with_its_sentence(code: str) -> None:
    error = from_code(code, "No <b>, and what to do.")
    assert isinstance(error, Exception)
    bundle = error._repr_mimebundle_()
    assert bundle["text/plain"] == f"{code}: No <b>, and what to do."
    assert "No &lt;b&gt;, and what to do." in bundle["text/html"]
    assert error._display_()._mime_() == ("text/html", bundle["text/html"])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\x1b[31mb\x1b]0;c\x07", r"a\x1b[31mb\x1b]0;c\x07"),  # a terminal obeys them
        ("no model \ud800", r"no model \ud800"),  # Jupyter's messages and marimo's cannot carry it
        ("two\nlines", "two\nlines"),
        ("a" * 10**6, f"{'a' * 3996} ..."),
    ],
)
def test_an_error_with_a_text_of_any_origin_can_be_shown(said: str, shown: str) -> None:
    bundle = from_code("ModelNotFound", said)._repr_mimebundle_()
    assert bundle["text/plain"] == f"ModelNotFound: {shown}"
    assert shown in bundle["text/html"]
    json_packer(bundle)


def test_interrupts_are_cards_too() -> None:
    shown = WorkInterrupted("The sweep was interrupted.")._repr_mimebundle_()
    assert shown["text/plain"] == "WorkInterrupted: The sweep was interrupted."
    assert issubclass(dj.Interrupted, ShownError)
    assert issubclass(dj.BatchInterrupted, ShownError)


def test_every_form_is_plain_data() -> None:
    """marimo encodes no subclass of str."""
    bundle = View(plain="a", html=Html("<b>a</b>"))._repr_mimebundle_()
    assert [type(one) for one in bundle.values()] == [str, str]
    assert json.loads(json.dumps(bundle)) == bundle


def test_marimo_gets_the_text_of_a_value_without_html() -> None:
    class Cardless(Displayed):
        _view = "no_such_view"

        def __repr__(self) -> str:
            return "the numbers"

    mime, text = Cardless()._display_()._mime_()
    assert mime == "text/plain"
    assert text.startswith("the numbers\nThe card of Cardless cannot be imported")
