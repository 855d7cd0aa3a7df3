"""How a run of a session came back: stopped or ended, as was meant, and the digest of what it ended with."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.client.stops import Finished, Paused
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.experiments.digest import digest


def paused(stop: Any) -> Paused:
    """The stop; DjinnError where the run did not stop."""
    if not isinstance(stop, Paused):
        raise DjinnError(f"A run was to stop and did not: {stop!r}")
    return stop


def finished(stop: Any) -> Finished:
    """The end; DjinnError where the run did not come to it."""
    if not isinstance(stop, Finished):
        raise DjinnError(f"A run was to end and did not: {stop!r}")
    return stop


def digest_of(done: Finished) -> str:
    """Of the bits of the fp32 logits a run ended with."""
    return digest(done.logits)
