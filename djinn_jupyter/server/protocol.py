"""The digest of the messages between the sidebar and the server: a page built with another one is not spoken to.

`docs/wire_ts.py` writes it into the sidebar's bundle. An engine's own is in `wire/protocol.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from djinn_jupyter.server.answers import answers_among
from djinn_jupyter.server.messages import Accepted, Engines, Live, Said
from djinn_jupyter.wire.failed import Failed
from djinn_jupyter.wire.kinds import ours
from djinn_jupyter.wire.protocol import digest_of


@cache
def spoken() -> tuple[Any, ...]:
    """Return the messages between browser and server, of the core and of our methods."""
    answers = answers_among(ours())
    return (*answers, *answers.values(), Accepted, Failed, Engines, Live, Said, *ours().replies, *ours().events)


@cache
def digest() -> str:
    """Return the digest of these messages, once a process."""
    return digest_of(spoken())
