"""Copies the pictures of the documents from what the browser tests left, and joins the frames of the moving one: `make
pictures`, after a `make test`.

Nothing in docs/pictures is made by hand; a missing picture is an error that names the test that makes it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image

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
    "features.png": ("features.png", "test_edges.py"),
}
# The frames of the moving picture, each with the time that it is shown.
MOVING, FRAMES_BY = "break-edit-resume.webp", "test_lab.py"
MILLISECONDS = {
    "frame-0.png": 1500,
    "frame-1.png": 1500,
    "frame-2.png": 3500,
    "frame-3.png": 3500,
    "frame-4.png": 3000,
    "frame-5.png": 3000,
}


def main() -> int:
    wanted = [*SOURCES.values(), *((name, FRAMES_BY) for name in MILLISECONDS)]
    missing = [f"{test} ({name})" for name, test in wanted if not (ARTIFACTS / name).exists()]
    if missing:
        sys.stderr.write(f"Not there yet: {', '.join(missing)}. Run: pytest tests/browser\n")
        return 1
    for picture, (name, _) in SOURCES.items():
        shutil.copyfile(ARTIFACTS / name, PICTURES / picture)
    join_frames(PICTURES / MOVING)
    sys.stdout.write(f"{len(SOURCES)} pictures copied and one joined; look at them before they are committed.\n")
    return 0


def join_frames(path: Path) -> None:
    """Write the frames as one animated WebP, without loss, which goes on for ever."""
    first, *others = [Image.open(ARTIFACTS / name).convert("RGB") for name in MILLISECONDS]
    times = list(MILLISECONDS.values())
    first.save(path, save_all=True, append_images=others, duration=times, loop=0, lossless=True, quality=100, method=6)


if __name__ == "__main__":
    sys.exit(main())
