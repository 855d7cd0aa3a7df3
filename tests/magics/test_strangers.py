"""Magics of another distribution: known by name from its entry points, imported at their first use, refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.utils.capture import capture_output

from djinn_jupyter.magics import load_ipython_extension, unload_ipython_extension
from tests.magics.conftest import Notebook
from tests.magics.test_completion import complete
from tests.magics.test_stand_ins import NOTHING, waiting
from tests.strangers import added_to

MAGIC = """
from IPython.core.magic import magics_class
from djinn_jupyter.magics.parsing import Group, option, verb

@magics_class
class ZetaMagics(Group):
    @verb(option("number", type=float), option("--twice", action="store_true", help="two times"), cell=True)
    def djinn_zeta(self, args, *body):
        '''Say a number.'''
        self.state.screen.say(f"{args.number * (1 + args.twice):g}{'' .join(body)}")

    @verb()
    def djinn_zeta_where(self, args):
        '''Say where.'''
        self.state.screen.say(self.state.session().name)

    @verb()
    def djinn_load(self, args):
        '''Take what is ours.'''

    @verb()
    def who(self, args):
        '''Take what is IPython's.'''
"""
ZETA = "djinn_zeta = djinn_zeta.magic"


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    yield from added_to(tmp_path, monkeypatch)


def reloaded(notebook: Notebook) -> str:
    """Load the extension anew, as a notebook does after an installation; return what it says."""
    with capture_output() as captured:
        load_ipython_extension(notebook.shell, notebook.client)
    return captured.stdout


def test_a_stranger_s_magic_is_called_as_ours_are(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics=ZETA)
    assert reloaded(bare) == ""
    assert "djinn_zeta" in waiting(bare)
    assert bare.cell("number = 4\n%djinn_zeta --twice $number").strip() == "8"
    assert bare.fails("%djinn_zeta x") == "number takes a number, not 'x'."
    assert bare.fails("%djinn_zeta_where") == NOTHING
    bare.cell("%djinn_load demo")
    assert bare.cell("%djinn_zeta_where").strip().endswith("paris.ipynb")
    assert "Interactive namespace is empty" not in bare.cell("%who")
    unload_ipython_extension(bare.shell)
    there = set(bare.shell.magics_manager.magics["line"])
    assert (there & {"djinn_zeta", "djinn_zeta_where", "who"}) == {"who"}


def test_a_first_use_may_be_its_cell_form_its_help_or_a_completion(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics=ZETA)
    reloaded(bare)
    assert bare.cell("%%djinn_zeta 2\nof a cell").strip() == "2of a cell"
    reloaded(bare)
    assert "Say a number." in bare.shell.object_inspect_mime("%djinn_zeta")["text/plain"]
    reloaded(bare)
    assert complete(bare, "%djinn_zeta --tw") == ["--twice"]


def test_one_that_cannot_be_imported_says_so_at_its_call_alone(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": "import no_such_module"}, magics=ZETA)
    assert reloaded(bare) == ""
    said = (
        "%djinn_zeta is in djinn_zeta.magic, which cannot be imported "
        "(ModuleNotFoundError: No module named 'no_such_module'): mend or uninstall it."
    )
    for cell in ("%djinn_zeta 3", "%%djinn_zeta 3\ncell"):
        assert bare.fails(cell) == said
    assert said in bare.shell.object_inspect_mime("%djinn_zeta")["text/plain"]
    assert complete(bare, "%djinn_zeta --tw") == []
    assert "%djinn_zeta" in bare.cell("%lsmagic")
    bare.cell("%djinn_load demo\n%djinn_run The capital of France is")


@pytest.mark.parametrize("error", ["SystemExit", "BaseException", "GeneratorExit"])
def test_one_that_was_mended_is_imported_by_the_next_call(
    bare: Notebook, add: Callable[..., None], tmp_path: Path, error: str
) -> None:
    add("zeta", "djinn_zeta", {"magic": f"raise {error}(3)"}, magics=ZETA)
    reloaded(bare)
    assert f"({error}: 3)" in bare.fails("%djinn_zeta 3")
    (tmp_path / "djinn_zeta" / "magic.py").write_text(MAGIC)
    assert bare.cell("%djinn_zeta 3").strip() == "3"


def test_one_of_our_names_stays_ours_and_the_clash_is_said_when_the_extension_is_loaded(
    bare: Notebook, add: Callable[..., None]
) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics="djinn_where = djinn_zeta.magic")
    said = reloaded(bare)
    assert said.count("\n") == 1
    assert "(djinn_zeta of zeta 1.0) is left out, because its magic 'djinn_where' is also that of djinn-jupyter" in said
    assert bare.fails("%djinn_where") == NOTHING


def test_a_name_of_ipythons_stays_ipythons(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics=f"{ZETA}\nwho = djinn_zeta.magic\nbash = djinn_zeta.magic")
    assert reloaded(bare) == ""
    assert not waiting(bare) & {"who", "bash"}
    unload_ipython_extension(bare.shell)
    assert "who" in bare.shell.magics_manager.magics["line"]
    assert "bash" in bare.shell.magics_manager.magics["cell"]


def test_one_name_of_two_strangers_is_neithers(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics=ZETA)
    add("eta", "djinn_eta", {"magic": MAGIC}, magics="djinn_zeta = djinn_eta.magic")
    said = reloaded(bare).splitlines()
    assert len(said) == 2
    assert all("djinn_zeta of zeta 1.0" in line and "djinn_eta of eta 1.0" in line for line in said)
    assert bare.fails("%djinn_zeta 3") == "Line magic function `%djinn_zeta` not found."


def test_one_that_its_module_does_not_have_is_not_there(bare: Notebook, add: Callable[..., None]) -> None:
    add("zeta", "djinn_zeta", {"magic": MAGIC}, magics=f"{ZETA}\ndjinn_eta = djinn_zeta.magic")
    reloaded(bare)
    assert bare.fails("%djinn_eta") == "Line magic function `%djinn_eta` not found."
    assert bare.cell("%djinn_zeta 3").strip() == "3"
