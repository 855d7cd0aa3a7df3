"""Builds the sidebar while the package is installed, and puts it where JupyterLab finds it. Needs Node.js and npm.

Where there is no usable Node.js the install goes on without the sidebar and says so. A bundle is built again when its
sources are others than those it was built from, whatever the clocks of the files say.

The bundle has the licences of the npm packages within it (`static/third-party-licenses.json`, by JupyterLab's builder).
The wheel has an SBOM of the same packages, in CycloneDX's form, by npm (PEP 770).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "djinn-jupyter"
INSTALLED_AT = f"share/jupyter/labextensions/{NAME}"
SOURCES = ("src", "style", "schema", "package.json", "package-lock.json", "tsconfig.json")
LICENCES = "static/third-party-licenses.json"
SBOM = "lib/sidebar.cdx.json"
NEEDED = "Node.js 20.19, 22.12 or later"


class SidebarHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        home = Path(self.root) / "labextension"
        bundle = Path(self.root) / "djinn_jupyter" / "labextension"
        missing = what_is_missing()
        if missing:
            self.app.display_warning(
                f"The sidebar for JupyterLab is left out: {missing}. Everything else is installed; "
                f"for the sidebar install {NEEDED} and run this installation again."
            )
            return
        build(home, bundle)
        build_data["shared_data"][str(bundle)] = INSTALLED_AT
        build_data["shared_data"][str(home / "install.json")] = f"{INSTALLED_AT}/install.json"
        build_data["sbom_files"].append(str(home / SBOM))


def what_is_missing() -> str | None:
    """Return the reason why the sidebar cannot be built here; None when it can."""
    if os.environ.get("DJINN_SIDEBAR") == "no":
        return "DJINN_SIDEBAR is set to `no`"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return f"there is no {'Node.js' if node is None else 'npm'} on the path"
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    if not found or not is_new_enough(int(found[1]), int(found[2])):
        return f"{node} is version {said.strip() or 'unknown'}, and {NEEDED} is needed"
    return None


def is_new_enough(major: int, minor: int) -> bool:
    """Return True for versions that the bundler takes: ^20.19 or >= 22.12."""
    return (major == 20 and minor >= 19) or (major, minor) >= (22, 12)


def build(home: Path, bundle: Path) -> None:
    """Bring `bundle` up to date with the sources in `home`. CalledProcessError when npm, compiler or bundler fail."""
    built_from, wanted = home / "lib" / ".built-from", digest(home, SOURCES)
    if (
        (bundle / "static").is_dir()
        and (home / SBOM).is_file()
        and built_from.is_file()
        and built_from.read_text() == wanted
    ):
        return
    install_packages(home)
    for stale in (bundle, home / "lib"):
        shutil.rmtree(stale, ignore_errors=True)
    npm(home, "run", "build")
    write_sbom(home, bundle)
    built_from.write_text(wanted)


def install_packages(home: Path) -> None:
    """Install the packages that the lockfile names, unless they are there already. No script of a package is run."""
    stamp, wanted = home / "node_modules" / ".installed-from", digest(home, ("package.json", "package-lock.json"))
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    npm(home, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    stamp.write_text(wanted)


def write_sbom(home: Path, bundle: Path) -> None:
    """Write npm's description of the packages within the bundle, the same in every build from the same sources."""
    found = json.loads((bundle / LICENCES).read_text())["packages"]
    bundled = {f"{one['name']}@{one['versionInfo']}" for one in found}
    sbom = json.loads(npm(home, "sbom", "--package-lock-only", "--sbom-format", "cyclonedx", output=subprocess.PIPE))
    del sbom["serialNumber"], sbom["metadata"]["timestamp"]
    sbom["components"] = [one for one in sbom["components"] if one["bom-ref"] in bundled]
    sbom["dependencies"] = [{"ref": sbom["metadata"]["component"]["bom-ref"], "dependsOn": sorted(bundled)}]
    for one in sbom["components"]:
        one["scope"], one["properties"] = "required", []  # for npm they are tools of the build
    (home / SBOM).write_text(json.dumps(sbom, indent=2))


def npm(home: Path, *arguments: str, output: int | None = None) -> str:
    """Run npm in `home`, and return its output where that is asked for."""
    return subprocess.run(["npm", *arguments], cwd=home, check=True, stdout=output, text=True).stdout


def digest(home: Path, names: tuple[str, ...]) -> str:
    """A text that changes with the name or content of any file below `names`."""
    files = [path for name in names for path in sorted([home / name, *(home / name).rglob("*")]) if path.is_file()]
    summed = hashlib.sha256()
    for path in files:
        summed.update(f"{path.relative_to(home).as_posix()} {path.stat().st_size}\n".encode())
        summed.update(path.read_bytes())
    return summed.hexdigest()
