"""The limit on open files, sockets included, of this process."""

from __future__ import annotations

import logging
import resource
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
