"""Everything that a user calls in Python is in its reference, with a docstring; examples in docstrings run as shown."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter import api, errors
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.system.config import EngineConfig
from tests import adapters, saes, transcoders
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.threads import one_thread

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import python_api  # noqa: E402  a program beside the documents, which are no package

PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


def members() -> Iterator[tuple[str, Any]]:
    yield from ((f"dj.{name}", each) for name, each in python_api.public_functions().items())
    for kind in python_api.public_classes():
        yield kind.__name__, kind
        for name, member in python_api.public_members(kind):
            yield f"{kind.__name__}.{name}", python_api._as_function(member)


def chapter(kind: str) -> str:
    found = re.search(rf"^## (?:dj\.)?{kind}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"{kind} has no chapter"
    return found[1]


def test_every_public_name_of_the_package_is_in_the_reference() -> None:
    for name in dj.__all__:
        assert name == "__version__" or f"### dj.{name}\n" in PAGE or f"## dj.{name}\n" in PAGE, name


def test_every_member_that_a_live_object_has_is_in_its_chapter(engine: RemoteEngine) -> None:
    """By objects that an engine gave, not by the classes that the page is written from."""
    session = engine.session("here")
    session.breakpoint("resid_post.2")
    rule = session.steer("mlp_out.1", dj.scale(0.5))
    stop = session.run("The capital of France is")
    lost = session.loss("The capital of France is Paris.")
    found = (
        engine,
        session,
        stop,
        rule,
        lost,
        stop.lens(),
        stop.effect(),
        session.inspect(),
        session.resume(free=True),
    )
    for one in found:
        text = chapter(type(one).__name__)
        names = {name for name in dir(one) if not name.startswith("_")} - python_api.OF_THE_CLIENT
        assert [name for name in names if f"### {name}\n" not in text and f"`{name}`" not in text] == [], one


def test_every_class_that_a_public_member_returns_has_a_chapter() -> None:
    for kind in python_api.public_classes():
        chapter(kind.__name__)
    assert {"Losses", "Snapshot", "SteeringRule", "Values"} <= {kind.__name__ for kind in python_api.public_classes()}


def test_every_member_has_a_docstring() -> None:
    assert [name for name, member in members() if not (inspect.getdoc(member) or "").strip()] == []


def test_a_member_that_returns_an_array_says_its_shape() -> None:
    arrays = [
        (name, inspect.getdoc(member) or "")
        for name, member in members()
        if "ndarray" in str(getattr(member, "__annotations__", {}).get("return"))
    ]
    assert len(arrays) > 4
    assert [name for name, said in arrays if "[" not in said] == []


def test_every_error_that_a_docstring_names_is_one() -> None:
    said = " ".join(inspect.getdoc(member) or "" for _, member in members())
    named = {word for word in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", said) if word in errors.BY_CODE}
    assert len(named) > 10
    assert all(f" {name} " in PAGE for name in named)


def test_the_members_left_out_are_called_by_the_client_itself() -> None:
    sources = {
        found.name: inspect.getsource(importlib.import_module(found.name))
        for found in pkgutil.walk_packages(api.__path__, "djinn_jupyter.api.")
    }
    for name in python_api.OF_THE_CLIENT:
        assert any(re.search(rf"\.{name}\b", source) for source in sources.values()), name


def test_every_message_that_the_reference_links_to_is_in_the_page_of_messages() -> None:
    page = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    assert [kind.__name__ for kind in python_api.messages() if f"### {kind.__name__}\n" not in page] == []


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Iterator[RemoteEngine]:
    """The demo model in an engine of this process."""
    with one_thread():
        loaded = load_model(EngineConfig(model="demo"))
        with reached(build_desk(loaded.model, loaded.tokenizer)) as [engine]:
            yield engine


@pytest.fixture(scope="module")
def folders(demo: RemoteEngine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with an adapter, an SAE and a transcoder across layers of the demo model."""
    model, place, size = (
        load_model(EngineConfig(model="demo")).model,
        tmp_path_factory.mktemp("modules"),
        demo.description,
    )
    across = transcoders.drawn_across(size.hidden_size, size.layers)
    return {
        "adapter_folder": adapters.saved(place / "sql", adapters.drawn(model, ("q_proj", "v_proj"))),
        "sae_folder": saes.saved(place / "sae", saes.drawn(size.hidden_size)),
        "clt_folder": transcoders.across_saved(place / "clt", across),
    }


@pytest.fixture
def engine(demo: RemoteEngine) -> RemoteEngine:
    return demo


@functools.cache
def examples() -> dict[str, doctest.DocTest]:
    found = {name: inspect.getdoc(member) or "" for name, member in members()}
    read = doctest.DocTestParser().get_doctest
    return {name: read(said, {}, name, None, None) for name, said in found.items() if ">>>" in said}


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_example_gives_what_it_shows(
    name: str, demo: RemoteEngine, tmp_path: Path, folders: dict[str, Path]
) -> None:
    session, test = demo.session("example", fresh=True), examples()[name]
    own = {"folder": tmp_path / "folder", "new_folder": tmp_path / "new"}
    test.globs = {"dj": dj, "engine": demo, "session": session, **own, **folders}
    said: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert "".join(said) == ""


def test_an_example_with_another_result_is_found() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert "Expected" in "".join(said)
