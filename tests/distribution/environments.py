"""Wheels of this tree in two versions, and environments to install them in, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from djinn_evaluation.benchmarks.installing import outside
from djinn_jupyter._version import __version__
from tests.house.repository import ROOT

OURS: Final = ("djinn-jupyter", "djinn-jupyter-client")
NEXT: Final = "999.0.0"
OF_A_WHEEL: Final = ("pyproject.toml", "README.md", "LICENSE", "djinn_jupyter", "distribution", "labextension")


def tree_of_the_next_version(tree: Path) -> Path:
    """Copy what a wheel is made from, with the built sidebar, to the folder `tree`, as the version NEXT."""
    tree.mkdir()
    for name in OF_A_WHEEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        else:
            shutil.copy(ROOT / name, tree)
    version = tree / "djinn_jupyter" / "_version.py"
    version.write_text(version.read_text().replace(__version__, NEXT))
    return tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A fresh environment, which has the packages of this one but for ours."""

    place: Path

    @classmethod
    def beside(cls, shared: Path, place: Path) -> Environment:
        """Make one in `place`. `shared` gets links to the packages of this environment."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        if not shared.exists():
            shared.mkdir()
            folders = [folder for folder in map(Path, sys.path) if [*folder.glob("*.dist-info")]]
            for entry in chain.from_iterable(folder.iterdir() for folder in folders):
                if "djinn" not in entry.name and entry.suffix != ".pth" and not (shared / entry.name).exists():
                    (shared / entry.name).symlink_to(entry)
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "shared.pth").write_text(f"{shared}\n")
        return cls(place=place)

    def python(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run its Python, in its folder, with nothing of this checkout on the path."""
        return subprocess.run(
            [self.place / "bin" / "python", *map(str, words)],
            cwd=self.place,
            env={**outside(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def pip(self, *words: object) -> str:
        """Run pip, which has to succeed, and return its output."""
        done = self.python("-m", "pip", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def files(self) -> set[str]:
        """Return the paths of its files."""
        files = (path for path in self.place.rglob("*") if path.is_file())
        return {path.relative_to(self.place).as_posix() for path in files}
