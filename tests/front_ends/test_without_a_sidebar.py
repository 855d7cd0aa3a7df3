"""What the sidebar asks of an engine, and the magic that asks the same."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from djinn_jupyter.magics.stand_ins import groups_in
from djinn_jupyter.magics.table import MODULES
from djinn_jupyter.wire import kinds
from tests.front_ends.table import rows_below
from tests.house.repository import ROOT

ASKED = {kind.__name__: kind for kind in kinds.ours().requests}
OF_THE_SERVER = {"ListSessions", "ReadStatistics"}  # asked by the gateway, whose state the sidebar shows
SOURCES = [path for path in (ROOT / "labextension" / "src").rglob("*.ts*") if "wire" not in path.parts]
TABLE = dict(rows_below("the sidebar asks")[1:])


def sent_by(paths: list[Path], quote: str) -> set[str]:
    texts = "".join(path.read_text(encoding="utf-8") for path in paths)
    return {name for name in re.findall(quote, texts) if name in ASKED}


def test_the_table_has_all_that_the_sidebar_asks() -> None:
    sidebar = sent_by(SOURCES, r"['\"](\w+)['\"]")
    server = sent_by([*(ROOT / "djinn_jupyter" / "server").glob("*.py")], r"\b(\w+)\(")
    assert "ReadStatistics" in server
    assert {name.strip("`") for name in TABLE} == sidebar | OF_THE_SERVER
    assert {name for name in sidebar if ASKED[name].terms.browser is None} == set()


@pytest.mark.parametrize("row", TABLE.items(), ids=lambda row: row[0].strip("`"))
def test_each_magic_of_the_table_has_its_options(row: tuple[str, str]) -> None:
    named = re.findall(r"`%(\w+)( --\w+)?`", row[1])
    assert named
    for name, option in named:
        module = import_module(MODULES[name])
        magic = next(getattr(group, name) for group in groups_in(module) if name in group.magics["line"])
        assert not option or option.strip() in magic.parser._option_string_actions
