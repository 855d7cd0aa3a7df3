"""Moments and durations as words of the command line. The parser tells what is wrong with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from djinn_jupyter.errors import UsageError
from djinn_jupyter.moments import read_duration, read_moment


def moment(text: str) -> float:
    """Return a moment in seconds since the epoch."""
    return _said(read_moment, text)


def duration(text: str) -> float:
    """Return a duration in seconds."""
    return _said(read_duration, text)


def _said(read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
