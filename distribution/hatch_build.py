"""What `djinn-jupyter` takes from `djinn-jupyter-client`, which it requires in the same version with the engine's
libraries."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

OF_DEVELOPERS = "test"


class SameVersion(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Require the client's distribution, once for each extra, and take over its page and addresses. Not called for
        an sdist, which has the result."""
        tree = Path(self.root).parent
        client = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        extras = {name: f"{client['name']}[{name}]=={metadata['version']}" for name in client["optional-dependencies"]}
        metadata["dependencies"] = [extras.pop("engine")]
        metadata["optional-dependencies"] = {name: [one] for name, one in extras.items() if name != OF_DEVELOPERS}
        metadata["urls"] = client["urls"]
        metadata["readme"] = {"content-type": "text/markdown", "text": (tree / client["readme"]).read_text()}
