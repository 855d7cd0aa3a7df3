"""Check whether the model hub can be reached. Knows no model."""

from __future__ import annotations

import logging
import socket
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

log = logging.getLogger(__name__)

REACH_SECONDS: Final = 3.0


def notice_absence() -> None:
    """Switch the hub's library to offline for the rest of this process where there is no network. It would otherwise
    ask for every file, even of a cached model, and retry five times: 23 s for the first file alone."""
    if constants.HF_HUB_OFFLINE or getproxies():
        return
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or (443 if hub.scheme == "https" else 80)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=REACH_SECONDS).close()
    except OSError as error:
        log.info("%s cannot be reached (%s): what the cache holds is used", hub.hostname, error)
        constants.HF_HUB_OFFLINE = True
