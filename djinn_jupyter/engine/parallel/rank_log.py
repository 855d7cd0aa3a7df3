"""The lines of another rank in the log, with the request that rank 0 is at work on: at the level debug each layer that
it runs, and a layer that fails there alone. Never a value."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from djinn_jupyter.engine.log.lines import told
from djinn_jupyter.engine.log.logged import LoggedRequest, WorkingOn

log = logging.getLogger(__name__)


class LayerFailed(RuntimeError):
    """A layer has failed on this rank, which the log has."""


@contextmanager
def layer_told(layer: int, rank: int, asked: LoggedRequest | None) -> Iterator[None]:
    """Tell of a layer that runs within. Raises LayerFailed for an error that is not the loss of rank 0."""
    with WorkingOn(asked):
        try:
            yield
        except (EOFError, OSError):
            raise
        except Exception as error:
            fields = told("pass.failed", layer=layer, error_type=type(error).__name__)
            log.exception("The pass failed in layer %d on rank %d, which ends", layer, rank, extra=fields)
            raise LayerFailed from error
        if asked is not None and log.isEnabledFor(logging.DEBUG):
            log.debug("Layer %d has run on rank %d", layer, rank, extra=told("pass.layer", layer=layer))
