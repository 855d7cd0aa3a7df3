"""One module of the package knows what former versions wrote, and it is short."""

from __future__ import annotations

import re
from typing import Final

from tests.house.repository import text_files

CONVERTER: Final = "djinn_jupyter/files.py"
_FORMER: Final = re.compile(
    r"79ba2cba|ea93dcf|\b(?:earlier|former|older) (?:versions? of Djinn|formats?)\b|\bversions? (?:that|whose) "
    r"|older version's|\bof earlier versions|before there was one"
)


def test_no_other_module_speaks_of_former_formats() -> None:
    ours = [(path, text) for path, text in text_files() if re.match(r"(djinn_jupyter|labextension/src)/", path)]
    found = {path: _FORMER.findall(" ".join(text.split())) for path, text in ours if path != CONVERTER}
    assert {path: words for path, words in found.items() if words} == {}


def test_the_converter_is_short() -> None:
    (text,) = [text for path, text in text_files() if path == CONVERTER]
    assert len(text.splitlines()) <= 300
    assert _FORMER.search(text)
