"""The sidebar is built with the package, again when its sources change, left out with a sentence without Node.js."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import djinn_jupyter

ROOT = Path(__file__).parents[2]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "djinn_jupyter/_version.py", "djinn_jupyter/server/enable.json")
INSTALLED = f"djinn_jupyter_client-{djinn_jupyter.__version__}.data/data/share/jupyter/labextensions/djinn-jupyter/"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The package's frame and the sidebar's sources, with the packages that are installed here already."""
    copied = tmp_path / "project"
    for name in NEEDED:
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copied / name)
    built = shutil.ignore_patterns("node_modules", "lib", "test")
    shutil.copytree(ROOT / "labextension", copied / "labextension", ignore=built)
    _link_packages(ROOT / "labextension" / "node_modules", copied / "labextension" / "node_modules")
    return copied


def _link_packages(installed: Path, here: Path) -> None:
    """Make one link a package: an `npm ci` for other versions than these takes the links away, and not the packages."""
    here.mkdir()
    for entry in installed.iterdir():
        if entry.is_dir():
            (here / entry.name).symlink_to(entry)
        else:
            shutil.copy(entry, here / entry.name)


def built(project: Path, path: str) -> tuple[str, set[str]]:
    """Build a wheel; return the build's output and the names of the files in the wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        command, cwd=project, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (wheel,) = (project / "dist").glob("*.whl")
    return said, set(zipfile.ZipFile(wheel).namelist())


def broken_npm(folder: Path) -> str:
    """Return a path on which npm is there and fails."""
    folder.mkdir()
    (folder / "npm").write_text("#!/bin/sh\nexit 3\n")
    (folder / "npm").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_without_node_the_package_is_built_and_says_that_the_sidebar_is_left_out(project: Path, tmp_path: Path) -> None:
    said, names = built(project, str(tmp_path))
    assert "The sidebar for JupyterLab is left out: there is no Node.js on the path." in said
    assert "install Node.js 20.19, 22.12 or later" in said
    assert not [name for name in names if "labextensions" in name]
    assert "djinn_jupyter/_version.py" in names


def test_with_node_it_is_built_once_for_each_state_of_its_sources(project: Path, tmp_path: Path) -> None:
    _, names = built(project, os.environ["PATH"])
    assert {INSTALLED + "package.json", INSTALLED + "install.json"} <= names
    assert [name for name in names if name.startswith(INSTALLED + "static/remoteEntry.")]
    assert not [name for name in names if "node_modules" in name]
    without = broken_npm(tmp_path / "bin")
    built(project, without)
    style = project / "labextension" / "style" / "index.css"
    style.write_text(style.read_text() + "\n.djinn-new {\n  color: inherit;\n}\n")
    with pytest.raises(AssertionError, match="npm"):
        built(project, without)


def test_the_sidebar_has_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    lock = json.loads((ROOT / "labextension" / "package-lock.json").read_text())
    assert package["version"] == lock["version"] == djinn_jupyter.__version__
