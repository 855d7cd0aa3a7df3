"""How many files, sockets among them, this process may have open."""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

ENOUGH: Final = 2**20  # macOS says infinity and takes less


def allow_all() -> int:
    """Raise the limit to what the process may give itself, so that connections nobody needs leave room for files; the
    limit then."""
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
