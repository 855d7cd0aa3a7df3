"""The limit on open files, sockets included, of this process."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

ENOUGH: Final = 2**20  # macOS reports infinity and accepts less


def allow_all() -> int:
    """Raise the soft limit as far as the process may, so that idle connections leave room for files. Return the limit
    now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.info("%d files may be open, and no more: %s", soft, error)
        return soft
    return wanted


def limit_now() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


# Python's collector of cycles, kept from the objects of imported packages: they live as long as the process. Importing
# torch and transformers makes millions of objects, and the collector looked through all of them seven times during a
# start (a fifth of its CPU seconds), then for a quarter of a second whenever it made a full collection while the
# engine served (13 ms without them; on a loaded two-core machine).


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


# The amount of freed memory that glibc keeps for the next allocation. A system without glibc is left as it is. At
# first it maps blocks of 128 KiB and more one by one and unmaps them when they are freed, so that a pass over 256
# positions had up to 10,000 page faults for its activations. It raises both bounds as larger blocks are freed, up to
# those set here: after a while it had them in some engines, and in others not.

MAPPED_BYTES: Final = 32 << 20  # blocks from here on are mapped one by one: glibc's own upper bound
KEPT_BYTES: Final = 2 * MAPPED_BYTES  # at the heap's top; more is returned to the system: glibc's own factor
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed() -> bool:
    """Have blocks below MAPPED_BYTES reused. Return False where there is no glibc to be told."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    bounds = ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return tell is not None and all(tell(which, size) == 1 for which, size in bounds)
