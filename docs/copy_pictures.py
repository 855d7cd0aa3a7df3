"""Copies the pictures of the documents from what the browser tests left: `make pictures`, after a `make test`.

Nothing in docs/pictures is made by hand; a picture that is missing stops the copying and says which test makes it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARTIFACTS, PICTURES = ROOT / "tests" / "artifacts", ROOT / "docs" / "pictures"
QUICKSTART, SIDEBAR = "test_quickstart.py", "test_sidebar.py"
# The picture of a document: the artifact that it is, and the test in tests/browser that makes it.
SOURCES = {
    "stop.png": ("stop-light.png", QUICKSTART),
    "lens.png": ("lens-light.png", QUICKSTART),
    "attention.png": ("attention-light.png", QUICKSTART),
    "branches.png": ("branches-dark.png", QUICKSTART),
    "dose.png": ("dose-light.png", QUICKSTART),
    "memory.png": ("vram-frozen-light.png", "test_live_views.py"),
    "sidebar.png": ("sidebar-in-lab-light.png", SIDEBAR),
    "two-notebooks.png": ("two-notebooks.png", "test_side_by_side.py"),
    "debugger-panel.png": ("debugger-panel.png", "test_debugger_panel.py"),
    "edges.png": ("edges.png", "test_edges.py"),
    "features.png": ("features.png", "test_features.py"),
}


def main() -> int:
    missing = [f"{test} ({name})" for name, test in SOURCES.values() if not (ARTIFACTS / name).exists()]
    if missing:
        sys.stderr.write(f"Not there yet: {', '.join(missing)}. Run: pytest tests/browser\n")
        return 1
    for picture, (name, _) in SOURCES.items():
        shutil.copyfile(ARTIFACTS / name, PICTURES / picture)
    sys.stdout.write(f"{len(SOURCES)} pictures copied; look at them before they are committed.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
