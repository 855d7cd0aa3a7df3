"""A hook of MkDocs (`mkdocs.yml`): a notebook's links to other notebooks and pages lead to these on the site."""

from __future__ import annotations

import re
from typing import Any


def on_post_page(output: str, **_: Any) -> str:
    return re.sub(r'(href="[^":]+)\.(?:ipynb|md)(#[^"]*)?"', r'\1.html\2"', output)
