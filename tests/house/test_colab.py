"""An installation on Colab replaces none of the packages that its image has."""

from __future__ import annotations

import json
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.repository import ROOT

LINES = (ROOT / "tests" / "kernel" / "colab.txt").read_text().splitlines()
PINNED = [line.split("==") for line in LINES if not line.startswith("#")]
COLAB = {canonicalize_name(name): version for name, version in PINNED}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("asked", PROJECT["dependencies"])
def test_the_kernel_side_takes_what_is_there(asked: str) -> None:
    requirement = Requirement(asked)
    there = COLAB.get(canonicalize_name(requirement.name))
    assert there in requirement.specifier if there is not None else requirement.name == "msgspec"


def test_the_engine_takes_its_torch_and_transformers() -> None:
    engine = [Requirement(one) for one in PROJECT["optional-dependencies"]["engine"]]
    there = {one.name: COLAB.get(canonicalize_name(one.name)) for one in engine}
    replaced = {one.name for one in engine if there[one.name] is not None and there[one.name] not in one.specifier}
    assert replaced == set()


def test_no_server_is_asked_for() -> None:
    names = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]}
    assert names.isdisjoint({"jupyterlab", "notebook", "jupyter-server"})


def test_the_kept_outcome_is_of_this_list_and_found_no_conflict() -> None:
    """`make resolve` wrote it. The image's numpy has no wheel for Python 3.14."""
    kept = json.loads((ROOT / "evaluation" / "results" / "colab" / "resolved.json").read_text())
    assert f"# {kept['list']}" == LINES[0]
    assert [python for python in PYTHONS if kept["with_the_list"][python]["resolved"]] == ["3.11", "3.12", "3.13"]
    assert [python for python in PYTHONS if kept["newest"][python]["resolved"]] == [*PYTHONS]
    assert [python for python in PYTHONS if kept["types"][python].startswith("Success")] == [*PYTHONS]
