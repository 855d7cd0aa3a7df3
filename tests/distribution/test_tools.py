"""Wheels, SBOM, recipe and citation, each held against its own tool; `make packages` installs these."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from djinn_evaluation.benchmarks.installing import FIRST_STOP, SHAPE, build_wheels, download_dependencies
from djinn_jupyter._version import __version__
from tests.distribution.environments import Environment
from tests.distribution.test_recipe import RECIPE, wanted
from tests.house.repository import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(ROOT, folder)
    return folder


def test_twine_finds_nothing(wheels: Path) -> None:
    checked = [sys.executable, "-m", "twine", "check", "--strict", *map(str, wheels.iterdir())]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout


def test_the_sbom_is_of_cyclonedx(wheels: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (client,) = wheels.glob("djinn_jupyter_client-*.whl")
    name = f"djinn_jupyter_client-{__version__}.dist-info/sboms/sidebar.cdx.json"
    sbom = zipfile.ZipFile(client).read(name).decode()
    validator = JsonStrictValidator(SchemaVersion.from_version(json.loads(sbom)["specVersion"]))
    assert validator.validate_str(sbom) is None
    assert validator.validate_str(sbom.replace("purl", "url")) is not None


def test_the_citation_is_valid(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format"]
    assert subprocess.run([*command, ROOT / "CITATION.cff"], check=False).returncode == 0
    damaged = tmp_path / "CITATION.cff"
    damaged.write_text((ROOT / "CITATION.cff").read_text().replace("authors:", "author:"))
    assert subprocess.run([*command, damaged], check=False).returncode != 0


def test_the_recipe_is_rendered() -> None:
    from rattler_build import Stage0Recipe

    rendered = [variant.recipe for variant in Stage0Recipe.from_file(RECIPE).render()]
    assert {one.package.name: {str(spec) for spec in one.requirements.run} for one in rendered} == wanted()
    assert {one.package.version for one in rendered} == {__version__}


def test_a_recipe_that_is_none_is_refused() -> None:
    from rattler_build import RecipeParseError, Stage0Recipe

    with pytest.raises(RecipeParseError, match="unknown field"):
        Stage0Recipe.from_yaml(RECIPE.read_text().replace("requirements:", "requirement:", 1))


@pytest.mark.timeout(1200)
def test_a_folder_of_wheels_is_all_that_the_main_job_needs(wheels: Path, tmp_path: Path) -> None:
    """Downloaded once, then installed by hashes without a network, in an environment that shares nothing with this."""
    download_dependencies(wheels)
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("".join(map(hashed, sorted(wheels.iterdir()))))
    environment = Environment(place=tmp_path / "environment")
    subprocess.run([sys.executable, "-m", "venv", environment.place], check=True)
    environment.pip("install", "--no-index", "--find-links", wheels, "--require-hashes", "--requirement", wanted)
    assert environment.pip("check") == "No broken requirements found.\n"
    stopped = environment.python("-c", FIRST_STOP)
    assert stopped.stdout == SHAPE, stopped.stderr


def hashed(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
