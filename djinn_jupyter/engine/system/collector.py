"""Python's collector of cycles, kept from the objects of imported packages: they live as long as the process.

Importing torch and transformers makes millions of objects, and the collector looked through all of them seven times
during a start (a fifth of its CPU seconds), then for a quarter of a second whenever it made a full collection while the
engine served (13 ms without them; on a loaded two-core machine).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing during this block, and look at nothing later that it has left. For imports alone: cycles that are
    garbage at its end are never freed."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
