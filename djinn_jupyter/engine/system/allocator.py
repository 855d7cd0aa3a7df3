"""The amount of freed memory that glibc keeps for the next allocation. A system without glibc is left as it is.

At first it maps blocks of 128 KiB and more one by one and unmaps them when they are freed, so that a pass over 256
positions had up to 10,000 page faults for its activations. It raises both bounds as larger blocks are freed, up to
those set here: after a while it had them in some engines, and in others not.
"""

from __future__ import annotations

import ctypes
from typing import Final

MAPPED_BYTES: Final = 32 << 20  # blocks from here on are mapped one by one: glibc's own upper bound
KEPT_BYTES: Final = 2 * MAPPED_BYTES  # at the heap's top; more is returned to the system: glibc's own factor
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed() -> bool:
    """Have blocks below MAPPED_BYTES reused. Return False where there is no glibc to be told."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    bounds = ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return tell is not None and all(tell(which, size) == 1 for which, size in bounds)
