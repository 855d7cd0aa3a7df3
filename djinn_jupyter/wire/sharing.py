"""The request that shares a session with another person."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.access import Access
from djinn_jupyter.wire.naming import MOST_CHARACTERS, PERSON
from djinn_jupyter.wire.opening import Described
from djinn_jupyter.wire.request_base import SessionRequest

PersonName = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS, pattern=rf"^{PERSON}\Z")]


class Share(SessionRequest[Described], while_running=True, at_once=True):
    """Share a session of one's own with a person, or take that back (`access` None). They say its owner's name before
    its own: `anna@main`."""

    person: PersonName
    access: Access | None
