"""The blocks of docs/coming_from.md by the tool that their first line names."""

from __future__ import annotations

import re
import runpy
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"


def has_transformer_lens() -> bool:
    """Return whether the TransformerLens is there that the page and the integration are for: SAELens brings another."""
    try:
        return version("transformer-lens").startswith("4.")
    except PackageNotFoundError:
        return False


def blocks_of(tool: str) -> list[str]:
    found = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [block for named, block in found if named == tool]


def run(tool: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a tool one after the other, from a file: nnsight reads the source of a trace there. Return the
    names that they leave."""
    file = folder / f"{tool.replace(' ', '_')}.py"
    file.write_text("\n".join(blocks_of(tool)), encoding="utf-8")
    return runpy.run_path(str(file))
