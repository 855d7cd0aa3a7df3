"""Paths as users give them. Which files lie there is for others to look at."""

from __future__ import annotations

import os
from pathlib import Path

from djinn_jupyter.client.arguments import shown
from djinn_jupyter.errors import UsageError


def given_path(given: str | Path, noun: str) -> Path:
    """Return the full path that is meant by what names a `noun`, be it there or not. Raises UsageError for what names
    none here: no text, one that no file system takes, the home of a user who is not there."""
    try:
        if not str(given).strip() or "\0" in str(given):
            raise ValueError
        path = Path(given).expanduser().absolute()
        os.fsencode(path).decode()
        path.exists()
    except OSError as error:
        raise UsageError(
            f"{shown(str(given))} names no {noun} here: {(error.strerror or str(error)).lower()}."
        ) from None
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{shown(str(given))} names no {noun}.") from None
    return path
