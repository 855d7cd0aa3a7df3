"""Names of magics before their modules are imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from IPython.core.error import UsageError

from djinn_jupyter.magics import load_ipython_extension, stand_ins, table, unload_ipython_extension
from djinn_jupyter.wire.requests import Run
from tests.magics.conftest import Notebook, last
from tests.magics.test_completion import complete

NOTHING = "No model is loaded in this notebook; load one first, for example: %djinn_load demo"


def waiting(notebook: Notebook, kind: str = "line") -> set[str]:
    """The names whose modules are not imported, read past the table's own look-ups."""
    held = notebook.shell.magics_manager.magics[kind]
    return {name for name in held if isinstance(dict.get(held, name), stand_ins.StandIn)}


def test_names_are_there_and_no_module_of_them_is(bare: Notebook) -> None:
    assert waiting(bare) == set(table.MODULES)
    assert waiting(bare, "cell") == set(table.CELL_MAGICS)
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from djinn_jupyter.magics.table import MODULES
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "djinn_jupyter")
shell.run_line_magic("lsmagic", "")
print([name for name in set(MODULES.values()) if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("cell", "module"),
    [
        ("%djinn_where", "looking"),
        ("found = %djinn_status", "loading"),
        ("%%djinn_run\nThe capital of France is", "running"),
        ("get_ipython().run_line_magic('djinn_step', '')", "running"),
        ("djinn_where", "looking"),
        ("%djinn_run What is it?", "running"),
        ("%djinn_run --session paris What is it?", "running"),
    ],
)
def test_a_first_call_is_a_call_and_brings_its_group(bare: Notebook, cell: str, module: str) -> None:
    assert bare.fails(cell) == NOTHING
    group = {name for name, home in table.MODULES.items() if home == f"djinn_jupyter.magics.{module}"}
    assert waiting(bare) == set(table.MODULES) - group
    assert bare.fails(cell) == NOTHING


def test_a_first_line_is_expanded_in_the_scope_of_its_caller(bare: Notebook) -> None:
    bare.cell("""
def first():
    model, most = "demo", 2
    get_ipython().run_line_magic("djinn_load", "$model")
    get_ipython().run_line_magic("djinn_run", "--max-tokens $most That costs $most or {most}")
first()
""")
    asked = last(bare, Run)
    assert (asked.text, asked.max_new_tokens) == ("That costs $most or {most}", 2)


@pytest.mark.parametrize("name", ["%djinn_where", "%djinn_run", "%%djinn_run", "djinn_where"])
def test_a_question_about_one_is_answered_by_the_magic(bare: Notebook, name: str) -> None:
    before = bare.shell.object_inspect_mime(name)["text/plain"]
    assert name.strip("%") not in waiting(bare)
    assert before == bare.shell.object_inspect_mime(name)["text/plain"]
    assert "options:" in before
    assert ("looking.py" if "where" in name else "running.py") in before


def test_a_question_or_a_completion_imports_the_magic_of_its_line(bare: Notebook) -> None:
    assert complete(bare, "%djinn_where --eff") == ["--effect"]
    assert "djinn_where" not in waiting(bare)
    assert "djinn_load" in waiting(bare)
    bare.shell.register_magic_function(lambda line: bare.state.screen.say("mine"), magic_name="djinn_inspect")
    assert bare.fails("%djinn_where") == NOTHING
    assert bare.cell("%djinn_inspect").strip() == "mine"


def test_an_import_that_is_interrupted_is_begun_again_by_the_next_call(
    bare: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(module: str) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(stand_ins, "import_module", interrupted)
        assert bare.fails("%djinn_where") == "Interrupted. Nothing was asked of the engine yet."
    assert "djinn_where" in waiting(bare)
    assert bare.fails("%djinn_where") == NOTHING


def test_whoever_reads_all_magics_reads_the_magics(bare: Notebook) -> None:
    for kind, names in (("line", table.MODULES), ("cell", table.CELL_MAGICS)):
        held = [*bare.shell.magics_manager.magics[kind].items()]
        assert waiting(bare, kind)
        assert all(f"%{name}" in magic.__doc__ for name, magic in held if name in names)
        assert all(magic.parser.description for name, magic in held if name in names)
        assert not waiting(bare, kind)
        load_ipython_extension(bare.shell, bare.client)
    taken = {**bare.shell.magics_manager.magics["line"]}["djinn_where"]
    with pytest.raises(UsageError, match="No model is loaded"):
        taken("")


def test_the_extension_is_loaded_anew_by_ipython_too(bare: Notebook) -> None:
    bare.cell("%load_ext djinn_jupyter")
    for _ in range(2):
        assert bare.fails("%djinn_where") == NOTHING
        bare.cell("%reload_ext djinn_jupyter")
        assert waiting(bare) == set(table.MODULES)


def test_unloading_leaves_plain_tables_before_and_after_a_first_call(bare: Notebook) -> None:
    tables = bare.shell.magics_manager.magics
    for cell in (None, "%djinn_where"):
        if cell is not None:
            bare.fails(cell)
        unload_ipython_extension(bare.shell)
        assert [type(tables[kind]) for kind in ("line", "cell")] == [dict, dict]
        assert not [name for kind in tables.values() for name in kind if name.startswith("djinn_")]
        load_ipython_extension(bare.shell, bare.client)
        assert waiting(bare) == set(table.MODULES)
