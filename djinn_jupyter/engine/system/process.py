"""Settings of this process: the limit on open files, the garbage collector, glibc's allocator."""

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
    """Raise the soft limit to the maximum, so that idle connections leave room for files. Return the new limit."""
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


# Python's garbage collector, with imported packages' objects excluded: they live as long as the process. Importing
# torch and transformers makes millions of objects, and the collector traversed all of them seven times during a start
# (a fifth of its CPU seconds), then took a quarter of a second for every full collection while the engine served (13 ms
# without them; on a loaded two-core machine).


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector during this block, and exclude its objects from later collections. For imports only: cycles
    that are garbage at its end are never freed."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# The amount of freed memory that glibc keeps for the next allocation. A system without glibc is unchanged. At first
# glibc maps blocks of 128 KiB and more one by one and unmaps them when they are freed, so that a pass over 256
# positions had up to 10,000 page faults for its activations. It raises both bounds as larger blocks are freed, up to
# those set here: after a while some engines had them, and others not.

MAPPED_BYTES: Final = 32 << 20  # blocks from here on are mapped one by one: glibc's own upper bound
KEPT_BYTES: Final = 2 * MAPPED_BYTES  # at the heap's top; more is returned to the system: glibc's own factor
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed() -> bool:
    """Let glibc reuse blocks below MAPPED_BYTES. Return False without glibc."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    bounds = ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return tell is not None and all(tell(which, size) == 1 for which, size in bounds)
