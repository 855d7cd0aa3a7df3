"""Whether the model hub can be reached from here. Knows no model."""

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
    """Tell the hub's library where there is no network, for the rest of this process. It would ask for every file, also
    of a model in its cache, and five times again: 23 s for the first one alone."""
    if constants.HF_HUB_OFFLINE or getproxies():
        return
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or (443 if hub.scheme == "https" else 80)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=REACH_SECONDS).close()
    except OSError as error:
        log.info("%s cannot be reached (%s): what the cache holds is used", hub.hostname, error)
        constants.HF_HUB_OFFLINE = True
