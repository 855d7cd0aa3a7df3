"""JupyterLab's extension manager lists the package, and manages it by the name of its metadata."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from jupyterlab.extensions.pypi import PyPIExtensionManager

from djinn_jupyter._version import __version__
from tests.house.repository import ROOT

PROJECT = tomllib.loads((ROOT / "distribution" / "pyproject.toml").read_text())["project"]


async def test_the_extension_manager_lists_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code runs; the index answers with this project's metadata."""
    manager: Any = PyPIExtensionManager()

    def browse(classifiers: list[str]) -> list[list[str]]:
        return [[PROJECT["name"], __version__]] if {*classifiers} <= {*PROJECT["classifiers"]} else []

    async def metadata(name: str, version: str, base: str) -> dict[str, Any]:
        return {"summary": PROJECT["description"], "requires_python": PROJECT["requires-python"], "project_urls": {}}

    async def none(name: str) -> None:
        return None

    monkeypatch.setattr(manager._rpc_client, "browse", browse, raising=False)
    monkeypatch.setattr(manager, "_fetch_package_metadata", metadata)
    monkeypatch.setattr(manager, "get_latest_version", none)
    found, _ = await manager.list_packages("djinn", 1, 30)
    assert [one.pkg_type for one in found.values()] == ["prebuilt"]
    installed = json.loads((ROOT / "labextension" / "install.json").read_text())
    assert [*found] == [installed["packageName"]] == [PROJECT["name"]]


def test_it_does_not_list_the_files_beside_it() -> None:
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [one for one in files["classifiers"] if "JupyterLab" in one] == []
