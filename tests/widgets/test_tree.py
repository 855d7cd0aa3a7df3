"""The drawing of stops and forks."""

from __future__ import annotations

import re
from urllib.parse import unquote

from djinn_jupyter.widgets import tree, views
from tests.widgets import trees


def test_the_line_of_a_fork_that_has_no_stop_in_common_crosses_no_name() -> None:
    """It begins where the lines do."""
    names = re.findall(
        r'<text x="(\d+)" y="\d+" text-anchor="middle"[^>]*>([^<]+)<', unquote(views.tree_view(trees.branches()).html)
    )
    assert len(names) == 4
    assert all(int(x) - 2.6 * len(name) > tree.LEFT for x, name in names)  # half of it: a letter is 5.2 pixels wide
