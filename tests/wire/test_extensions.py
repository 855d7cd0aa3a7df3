"""Methods are found by our list and by entry points. A stranger's that fails or clashes is left out, alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter import extensions
from djinn_jupyter.link import doctor
from tests.strangers import added_to

Add = Callable[..., None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Yield what adds a distribution to those that are installed here."""
    yield from added_to(tmp_path, monkeypatch)


def named(name: str) -> extensions.Method:
    (found,) = (method for method in extensions.installed() if method.name == name)
    return found


def names() -> list[str]:
    return [method.name for method in extensions.methods()]


def test_ours_come_first_and_strangers_by_name(add: Add) -> None:
    add("zeta", "djinn_zeta", {})
    add("djinn-entropy", "djinn_entropy", {}, method="entropy")
    assert names() == [*extensions.ours(), "entropy", "zeta"]
    assert str(named("entropy")) == "entropy (djinn_entropy of djinn-entropy 1.0)"
    assert not named("entropy").is_ours
    assert named("heads").is_ours
    assert extensions.troubles() == {}


def test_a_module_of_a_method_is_imported_when_it_is_asked_for(add: Add) -> None:
    add("zeta", "djinn_zeta", {"request": "number = 3", "engine": "raise ImportError"})
    method = named("zeta")
    assert "djinn_zeta" not in sys.modules
    request = extensions.part(method, "request")
    assert request.number == 3
    assert extensions.part(method, "card") is None
    assert extensions.troubles() == {}
    assert "djinn_zeta.engine" not in sys.modules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import djinn_zeta.no_such_module", "ModuleNotFoundError: No module named 'djinn_zeta.no_such_module'"),
        ("raise ValueError('a\\nb')", "ValueError: a"),
        ("raise SystemExit", "SystemExit"),
        ("class Panic(BaseException): ...\nraise Panic('a')", "Panic: a"),
        ("def", "SyntaxError: invalid syntax (request.py, line 1)"),
    ],
)
def test_an_error_within_a_module_is_told_and_leaves_the_others(add: Add, text: str, said: str) -> None:
    add("zeta", "djinn_zeta", {"request": text})
    add("eta", "djinn_eta", {"request": ""})
    zeta = named("zeta")
    assert extensions.part(zeta, "request") is None
    assert names() == [*extensions.ours(), "eta"]
    assert extensions.part(named("eta"), "request") is not None
    assert extensions.troubles() == {
        zeta: "The method zeta (djinn_zeta of zeta 1.0) is left out, because its 'request' cannot be imported "
        f"({said}): mend or uninstall it, and begin the process anew."
    }


def test_a_package_that_is_not_there_is_told(add: Add, tmp_path: Path) -> None:
    add("zeta", "djinn_zeta", {})
    (tmp_path / "djinn_zeta" / "__init__.py").unlink()
    (tmp_path / "djinn_zeta").rmdir()
    assert extensions.part(named("zeta"), "request") is None
    assert "(ModuleNotFoundError: No module named 'djinn_zeta')" in extensions.troubles()[named("zeta")]


def test_of_two_strangers_of_one_name_neither_is_used(add: Add) -> None:
    add("one", "djinn_one", {}, method="entropy")
    add("two", "djinn_two", {}, method="entropy")
    assert names() == [*extensions.ours()]
    assert sorted(extensions.troubles().values()) == [
        f"The method entropy (djinn_{this} of {this} 1.0) is left out, because its name 'entropy' is also that of "
        f"entropy (djinn_{other} of {other} 1.0): uninstall one of them, and begin the process anew."
        for this, other in (("one", "two"), ("two", "one"))
    ]


def test_a_stranger_with_the_name_of_one_of_ours_is_left_out(add: Add) -> None:
    add("theirs", "djinn_theirs", {}, method="heads")
    assert names() == [*extensions.ours()]
    [(method, why)] = extensions.troubles().items()
    assert method.package == "djinn_theirs"
    assert f"is also that of heads (djinn_jupyter.methods.heads of {named_ours('heads').distribution})" in why


@pytest.mark.parametrize("value", ["djinn_jupyter.methods.heads", "djinn_jupyter.methods.none", "djinn_jupyter"])
def test_a_stranger_that_names_a_package_of_ours_is_left_out(add: Add, value: str) -> None:
    add(
        "last", "djinn_last", {}, method=f"zeta = {value}\nlast", magics="djinn_run = djinn_jupyter.methods.heads.magic"
    )
    assert names() == [*extensions.ours(), "last"]
    assert not named("zeta").is_ours
    assert extensions.magics({"djinn_run"}) == {}
    assert f"its package {value!r} is also that of djinn-jupyter" in extensions.troubles()[named("zeta")]


@pytest.mark.parametrize("value", ["djinn_zeta", "djinn_zeta.inner"])
def test_of_two_strangers_with_one_package_neither_is_used_nor_where_one_is_within_another(
    add: Add, value: str
) -> None:
    add("last", "djinn_last", {}, method=f"eta = {value}\nlast")
    add("zeta", "djinn_zeta", {})
    assert names() == [*extensions.ours(), "last"]
    assert f"its package {value!r} is also that of zeta (djinn_zeta of zeta 1.0)" in extensions.troubles()[named("eta")]


def named_ours(name: str) -> extensions.Method:
    return next(method for method in extensions.methods() if method.name == name)


@pytest.mark.parametrize("name", ["a-b", "a" * 65, "two words", "entropi\u0301a"])
def test_a_name_that_could_not_be_sent_is_refused(add: Add, name: str) -> None:
    add("zeta", "djinn_zeta", {}, method=name)
    assert names() == [*extensions.ours()]
    assert "its name is no identifier of at most 64 ASCII characters" in extensions.troubles()[named(name)]


def test_magics_are_known_without_an_import(add: Add) -> None:
    add("zeta", "djinn_zeta", {"magic": "raise ImportError"}, magics="djinn_zeta = djinn_zeta.magic")
    assert extensions.magics({"djinn_run"}) == {"djinn_zeta": "djinn_zeta.magic"}
    assert "djinn_zeta" not in sys.modules


def test_a_magic_of_ours_stays_ours(add: Add) -> None:
    add("zeta", "djinn_zeta", {}, magics="djinn_run = djinn_zeta.magic\ndjinn_zeta = djinn_zeta.magic")
    assert extensions.magics({"djinn_run"}) == {}
    assert names() == [*extensions.ours()]
    assert "its magic 'djinn_run' is also that of djinn-jupyter" in extensions.troubles()[named("zeta")]


def test_a_magic_of_two_strangers_is_neithers(add: Add) -> None:
    add("one", "djinn_one", {}, magics="djinn_entropy = djinn_one.magic\ndjinn_one = djinn_one.magic")
    add("two", "djinn_two", {}, magics="djinn_entropy = djinn_two.magic")
    add("three", "djinn_three", {}, magics="djinn_three = djinn_three.magic")
    assert extensions.magics(()) == {"djinn_three": "djinn_three.magic"}
    assert names() == [*extensions.ours(), "three"]


def test_a_magic_without_a_method_is_one_too(add: Add) -> None:
    add("zeta", "djinn_zeta", {}, magics="djinn_other = djinn_other.magic")
    assert extensions.magics(()) == {"djinn_other": "djinn_other.magic"}


def test_an_error_in_a_method_of_ours_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(extensions, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(extensions, "import_module", fails)
    with pytest.raises(ImportError):
        extensions.part(extensions.Method(name="heads", package=f"{extensions.HERE}.heads"), "request")
    assert extensions.troubles() == {}


def test_the_registry_is_of_the_standard_library_alone() -> None:
    said = "import sys; sys.path.insert(0, ''); from djinn_jupyter import extensions; extensions.magics(()); "
    loaded = subprocess.run(
        [sys.executable, "-c", f"{said}print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "djinn_jupyter.extensions" in loaded
    assert not {"msgspec", "numpy", "zmq", "IPython"} & set(loaded)


def test_the_doctor_lists_strangers_and_says_what_fails(add: Add) -> None:
    assert [*doctor._methods()] == []
    add("zeta", "djinn_zeta", {"request": "", "engine": "raise ImportError('only the engine has torch')"})
    add("eta", "djinn_eta", {"api": "raise ValueError('no')"})
    well, bad = doctor._methods()
    assert (well.level, bad.level) == ("note", "bad")
    assert well.sentence == ("The method zeta (djinn_zeta of zeta 1.0) is installed; it runs with the engine's rights.")
    assert "its 'api' cannot be imported (ValueError: no)" in bad.sentence
