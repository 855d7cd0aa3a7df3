"""The two wheels, installed from a folder without a network: whole, one version, gone without a trace."""

from __future__ import annotations

import hashlib
import json
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from djinn_evaluation.benchmarks.installing import build_wheels
from djinn_jupyter._version import __version__
from tests.distribution.environments import NEXT, OURS, Environment, tree_of_the_next_version
from tests.house.repository import ROOT, in_the_repository

CLIENT = f"djinn_jupyter_client-{__version__}"
SIDEBAR = f"{CLIENT}.data/data/share/jupyter/labextensions/djinn-jupyter/"
ASKED = f"""
import json, djinn_jupyter
from importlib.metadata import version
print(json.dumps({{"djinn_jupyter": djinn_jupyter.__version__, **{{name: version(name) for name in {OURS}}}}}))
"""
LICENCES = SIDEBAR + "static/third-party-licenses.json"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels in two versions."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(ROOT, folder)
    build_wheels(tree_of_the_next_version(tmp_path_factory.mktemp("next") / "tree"), folder)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages") / "shared"


@pytest.fixture
def environment(shared: Path, tmp_path: Path) -> Environment:
    return Environment.beside(shared, tmp_path / "environment")


def install(environment: Environment, wheels: Path, *words: str) -> None:
    environment.pip("install", "--no-compile", "--no-index", "--find-links", wheels, *words)


def installed(environment: Environment) -> dict[str, str]:
    """Return the versions of our distributions, and what the package says of itself."""
    said = environment.python("-B", "-c", ASKED)
    assert said.returncode == 0, said.stderr
    found: dict[str, str] = json.loads(said.stdout)
    return found


def both(version: str) -> dict[str, str]:
    return dict.fromkeys((*OURS, "djinn_jupyter"), version)


def test_one_has_all_files_and_the_other_has_none(wheels: Path) -> None:
    files = set(zipfile.ZipFile(wheels / f"{CLIENT}-py3-none-any.whl").namelist())
    config = f"{CLIENT}.data/data/etc/jupyter/jupyter_server_config.d/djinn_jupyter.json"
    tracked = {path.relative_to(ROOT).as_posix() for path in in_the_repository()}
    assert {name for name in tracked if name.startswith("djinn_jupyter/")} <= files
    assert {SIDEBAR + "package.json", SIDEBAR + "install.json", config} <= files
    assert [name for name in files if name.startswith(SIDEBAR + "static/remoteEntry.")]
    without = zipfile.ZipFile(wheels / f"djinn_jupyter-{__version__}-py3-none-any.whl").namelist()
    assert {name.partition("/")[0] for name in without} == {f"djinn_jupyter-{__version__}.dist-info"}


def test_both_pages_lead_to_the_public_copy(wheels: Path) -> None:
    addresses = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    for name in (name.replace("-", "_") for name in OURS):
        wheel = zipfile.ZipFile(wheels / f"{name}-{__version__}-py3-none-any.whl")
        page = message_from_bytes(wheel.read(f"{name}-{__version__}.dist-info/METADATA"))
        assert page.get_all("Project-URL") == [f"{kind}, {address}" for kind, address in addresses.items()]


def test_the_sidebars_packages_are_in_the_sbom_each_with_its_licence(wheels: Path) -> None:
    wheel = zipfile.ZipFile(wheels / f"{CLIENT}-py3-none-any.whl")
    sbom = json.loads(wheel.read(f"{CLIENT}.dist-info/sboms/sidebar.cdx.json"))
    described = {one["bom-ref"]: one["licenses"][0]["license"]["id"] for one in sbom["components"]}
    licences = json.loads(wheel.read(LICENCES))["packages"]
    assert described == {f"{one['name']}@{one['versionInfo']}": one["licenseId"] for one in licences}
    assert [one["name"] for one in licences if not one["extractedText"]] == []
    locked = json.loads((ROOT / "labextension" / "package-lock.json").read_text())["packages"]
    versions = {name: locked[f"node_modules/{name}"]["version"] for name in (one["name"] for one in licences)}
    assert {f"{name}@{version}" for name, version in versions.items()} == {*described} != set()


def test_an_installation_is_whole(environment: Environment, wheels: Path) -> None:
    install(environment, wheels, f"djinn-jupyter=={__version__}")
    assert installed(environment) == both(__version__)
    assert environment.pip("check") == "No broken requirements found.\n"
    listed = environment.python("-m", "jupyterlab.labextensions", "list").stderr
    assert f"djinn-jupyter v{__version__}" in listed
    assert "(python, djinn-jupyter)" in listed
    servers = environment.python("-m", "jupyter_server.extension.serverextension", "list")
    assert "djinn_jupyter enabled" in "".join(servers.stdout + servers.stderr).replace("\x1b[32m", "")


def test_it_is_upgraded_downgraded_and_gone_without_a_trace(environment: Environment, wheels: Path) -> None:
    before = environment.files()
    install(environment, wheels, f"djinn-jupyter=={__version__}")
    first = environment.files()
    install(environment, wheels, "--upgrade", "djinn-jupyter")
    assert installed(environment) == both(NEXT)
    install(environment, wheels, f"djinn-jupyter=={__version__}")
    assert installed(environment) == both(__version__)
    assert environment.files() == first
    environment.pip("uninstall", "--yes", *OURS)
    assert environment.files() == before


def test_hashes_are_required_where_they_are_given(environment: Environment, wheels: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    digests = {name: digest_of(wheels, name) for name in OURS}
    wanted.write_text(requirements(digests))
    install(environment, wheels, "--no-deps", "--require-hashes", "--requirement", str(wanted))
    assert installed(environment) == both(__version__)
    wanted.write_text(requirements({**digests, "djinn-jupyter-client": "0" * 64}))
    command = ["-m", "pip", "install", "--no-index", "--find-links", wheels, "--no-deps", "--force-reinstall"]
    refused = environment.python(*command, "--require-hashes", "--requirement", wanted)
    assert refused.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr


def digest_of(wheels: Path, name: str) -> str:
    wheel = wheels / f"{name.replace('-', '_')}-{__version__}-py3-none-any.whl"
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def requirements(digests: dict[str, str]) -> str:
    return "".join(f"{name}=={__version__} --hash=sha256:{digest}\n" for name, digest in digests.items())
