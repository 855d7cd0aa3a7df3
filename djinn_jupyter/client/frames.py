"""Tables of pandas, where it is installed: no dependency of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from djinn_jupyter.errors import MissingDependency


def frame_of(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return lists by column as a table. Raises MissingDependency."""
    try:
        frame = import_module("pandas").DataFrame
    except ImportError:
        raise MissingDependency(
            "to_pandas needs pandas, which is not installed here: pip install pandas. columns() has the same table as "
            "lists."
        ) from None
    return frame(columns)
