"""Check that a session's run stopped or ended as intended; the digest of its last logits."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.digest import digest
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.errors import DjinnError


def paused(stop: Any) -> Paused:
    """Return the stop; DjinnError where the run did not stop."""
    if not isinstance(stop, Paused):
        raise DjinnError(f"A run was to stop and did not: {stop!r}")
    return stop


def finished(stop: Any) -> Finished:
    """Return the result of a run that ended; DjinnError where it did not end."""
    if not isinstance(stop, Finished):
        raise DjinnError(f"A run was to end and did not: {stop!r}")
    return stop


def digest_of(done: Finished) -> str:
    """Return the digest of the bits of the fp32 logits a run ended with."""
    return digest(done.logits)
