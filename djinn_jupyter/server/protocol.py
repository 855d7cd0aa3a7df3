"""The digest of the messages between the sidebar and the server: a page built with another one is not spoken to.

`docs/wire_ts.py` writes it into the sidebar's bundle. An engine's own is in `wire/protocol.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from djinn_jupyter.server.answers import ANSWERS
from djinn_jupyter.server.messages import Accepted, Engines, Live, Said
from djinn_jupyter.wire.protocol import digest_of
from djinn_jupyter.wire.replies import Failed

SPOKEN: Final = (*ANSWERS, *ANSWERS.values(), Accepted, Failed, Engines, Live, Said)


@cache
def digest() -> str:
    """Return the digest of all messages between browser and server, once a process."""
    return digest_of(SPOKEN)
