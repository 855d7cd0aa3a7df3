"""Check whether the model hub can be reached, and what its cache on this machine has of a model."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

log = logging.getLogger(__name__)

REACH_SECONDS: Final = 3.0


def held_in_cache(model: str) -> str | None:
    """Return the revisions of a model in the cache, in words that say how to request them, by its name in any case;
    None where there are none."""
    cache, wanted = Path(constants.HF_HUB_CACHE), f"models--{model.replace('/', '--')}".lower()
    for folder in sorted(cache.glob("models--*")):
        if folder.name.lower() == wanted and (found := _revisions(folder)):
            name = folder.name.removeprefix("models--").replace("--", "/")
            return f"The cache has {name} at {', '.join(found)}: ask for that by its name and --revision."
    return None


def _revisions(folder: Path) -> list[str]:
    """Return the revisions of a folder of the cache with a configuration: commits, and the names that lead to them."""
    refs = [path for path in sorted((folder / "refs").rglob("*")) if path.is_file()]
    names = {path.relative_to(folder / "refs").as_posix(): path.read_text(encoding="utf-8").strip() for path in refs}
    commits = sorted(path.parent.name for path in (folder / "snapshots").glob("*/config.json"))
    led = {commit: [name for name, at in names.items() if at == commit] for commit in commits}
    return [f"{commit} ({', '.join(led[commit])})" if led[commit] else commit for commit in commits]


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
