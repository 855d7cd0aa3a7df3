"""The code that a result was made by: its commit, what was changed beyond it, and the versions. Git is asked only where
the packages lie in a checkout of ours."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from djinn_evaluation import CHECKOUT
from djinn_jupyter._version import __version__

PACKAGES: Final = ("djinn-jupyter", "torch", "transformers", "accelerate", "vllm")
FOLDERS: Final = ("djinn_jupyter", "evaluation/djinn_evaluation")  # of the code; documents and results change no figure
Code = Mapping[str, Any]


def present() -> dict[str, Any]:
    """Return the field `code` of a result file. `changes` is a digest of what no commit has; `commit`, `clean` and
    `changes` are None outside of a checkout."""
    told = {"versions": {**versions(PACKAGES), "djinn-jupyter": __version__}}
    if git("rev-parse", "--show-toplevel") != str(CHECKOUT.resolve()):
        return {"commit": None, "clean": None, "changes": None, **told}
    new = git("ls-files", "--others", "--exclude-standard", "--", *FOLDERS) or ""
    changed = (git("diff", "HEAD", "--", *FOLDERS) or "") + "".join(map(_content, new.splitlines()))
    digest = hashlib.sha256(changed.encode()).hexdigest()[:16] if changed else None
    return {"commit": git("rev-parse", "HEAD"), "clean": not changed, "changes": digest, **told}


def same(one: Code | None, other: Code | None) -> bool:
    """Return whether two results were made by one code: one version, and one commit or two that differ in neither of
    FOLDERS. Outside of a checkout the version alone decides. What names none is the same as nothing else."""
    if one is None or other is None or _version(one) != _version(other):
        return one is other
    first, second = one.get("commit"), other.get("commit")
    if first is None or second is None:
        return True
    if any(one.get(name) != other.get(name) for name in ("clean", "changes")):
        return False
    if first == second:
        return True
    trees = _trees(first)
    return trees is not None and trees == _trees(second)


def spelled(code: Code | None) -> str:
    """Return a code in words, such as `version 0.1.0, commit 1c794f7f with changes`."""
    if code is None:
        return "no commit"
    commit = code.get("commit")
    named = "" if commit is None else f", commit {commit[:8]}{'' if code.get('clean') else ' with changes'}"
    return f"version {_version(code)}{named}"


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    return {name: _version_of(name) for name in packages}


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git(*arguments: str) -> str | None:
    """Return what git says of the checkout; None where it refuses, or is not there."""
    command = ["git", "-C", str(CHECKOUT), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.rstrip()


def _content(name: str) -> str:
    return f"{name}\n{Path(CHECKOUT, name).read_bytes().hex()}\n"


def _version(code: Code) -> Any:
    return code.get("versions", {}).get("djinn-jupyter")


def _trees(commit: str) -> str | None:
    return git("rev-parse", *(f"{commit}:{folder}" for folder in FOLDERS))
