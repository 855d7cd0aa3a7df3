"""The access of a person to a session that another shares. Values only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.wire.frozen import Frozen

Access = Literal["read", "write"]


class SharedWith(Frozen, frozen=True):
    """A person with whom a session is shared: to `read`, or also to `write`, which is all but to close or share it."""

    person: str
    access: Access
