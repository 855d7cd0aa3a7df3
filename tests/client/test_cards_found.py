"""A result's card is found through its class, also one of another distribution; without it the text is shown."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.api.tables import SHORT, card_of

API = """
from djinn_jupyter.api.tables import Tabular

class Counted(Tabular):
    _view = "counted_view"

    def columns(self):
        return {"word": ["heads"], "count": [3]}

class Inherited(Counted):
    pass
"""
CARD = """
from djinn_jupyter.widgets.view import View

def counted_view(counted):
    return View(plain=f"{counted.columns()['count'][0]} heads", html="<b>3</b>")
"""


def result_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str | None, kind: str = "Counted") -> Any:
    """Return a result of a package that is written here."""
    package = folder.joinpath(*name.split("."))
    package.mkdir(parents=True)
    files = {"__init__.py": "", "api.py": API} | ({} if card is None else {"card.py": card})
    for file, text in files.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(folder)
    return getattr(import_module(f"{name}.api"), kind)()


@pytest.mark.parametrize(
    ("name", "kind"), [("drawn", "Counted"), ("drawn_so", "Inherited"), ("drawn_at.api.counted", "Counted")]
)
def test_a_result_of_another_package_is_drawn_by_its_own_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    result = result_of(tmp_path, monkeypatch, name, CARD, kind)
    assert card_of(type(result)).__module__ == f"{name}.card"
    shown = result._repr_mimebundle_()
    assert (shown["text/plain"], shown["text/html"]) == ("3 heads", "<b>3</b>")


@pytest.mark.parametrize(
    ("name", "card", "why"),
    [
        ("undrawn", None, "ModuleNotFoundError: No module named 'undrawn.card'"),
        ("unhelped", "import absent_of_all\n", "ModuleNotFoundError: No module named 'absent_of_all'"),
        ("misnamed", "", "AttributeError: module 'misnamed.card' has no attribute 'counted_view'"),
        ("broken", "raise OSError('x' * 10_000)\n", "OSError: x"),
    ],
)
def test_without_its_card_a_result_is_shown_as_text_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str | None, why: str
) -> None:
    shown = result_of(tmp_path, monkeypatch, name, card)._repr_mimebundle_()
    assert shown.keys() == {"text/plain"}
    text = shown["text/plain"]
    assert text.startswith(
        "word   count\nheads  3\nThe card of Counted cannot be imported; mend or install what it needs ("
    )
    assert why in text
    assert len(text) <= SHORT
