"""The lines of a pass in the log: the layer where it stopped or failed; at the level debug each layer, and each site
that a rule edited. Of passes that belong to no request (those of the self-test) nothing. Never a value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.system.log import present, told
from djinn_jupyter.wire.sites import Site

log = logging.getLogger(__name__)

STOPPED: Final = "The pass stopped at %s, step %d; layers run: %d"


def tell_stop(site: Site, *, layer: int, step: int, layers_run: int) -> None:
    if present() is not None:
        fields = told("pass.stopped", site=str(site), layer=layer, step=step, layers_run=layers_run)
        log.info(STOPPED, site, step, layers_run, extra=fields)


@contextmanager
def failure_told(layer: Callable[[], int], *, step: int) -> Iterator[None]:
    """Tell in which layer a pass fails, and the class of the error; its text is in the reply."""
    try:
        yield
    except Leave:
        raise
    except Exception as error:
        if present() is not None:
            at, name = layer(), type(error).__name__
            fields = told("pass.failed", layer=at, step=step, error_type=name)
            log.warning("The pass failed in layer %d, step %d: %s", at, step, name, extra=fields)
        raise


def tells_layers() -> bool:
    return log.isEnabledFor(logging.DEBUG) and present() is not None


def tell_layer(layer: int, **fields: Any) -> None:
    log.debug("Layer %d has run", layer, extra=told("pass.layer", layer=layer, **fields))


def tell_rules(site: Site, count: int) -> None:
    if tells_layers():
        log.debug("Edited by %d rules at %s", count, site, extra=told("pass.edited", site=str(site), rules=count))
