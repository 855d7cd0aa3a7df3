"""The recipe for conda-forge requires what pip does. Read as YAML; `make packages` renders it."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import yaml

from djinn_jupyter._version import __version__
from tests.house.repository import ROOT

RECIPE: Final = ROOT / "distribution" / "recipe.yaml"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distributions that have another name on conda-forge.
OF_CONDA: Final = {"prometheus-client": "prometheus_client", "torch": "pytorch", "xxhash": "python-xxhash"}


def wanted() -> dict[str, set[str]]:
    """Return the requirements of each package, as conda writes them."""
    engine = PROJECT["optional-dependencies"]["engine"]
    return {
        "djinn-jupyter-client": {*map(of_conda, PROJECT["dependencies"]), f"python {PROJECT['requires-python']}"},
        "djinn-jupyter": {*map(of_conda, engine), f"djinn-jupyter-client =={__version__}"},
    }


def of_conda(requirement: str) -> str:
    """Write a requirement of pip as one of conda."""
    name, versions = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
    return f"{OF_CONDA.get(name, name)} {versions}"


def test_the_recipe_has_the_requirements_of_pip() -> None:
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text().replace("${{ version }}", __version__))
    outputs = recipe["outputs"]
    assert {one["package"]["name"]: {*one["requirements"]["run"]} for one in outputs} == wanted()
    (built,) = [one for one in outputs if "host" in one["requirements"]]
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert of_conda(backend) in built["requirements"]["host"]
    assert built["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in PROJECT["scripts"].items()]
