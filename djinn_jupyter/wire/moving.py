"""A session moves between two engines of one model: the requests of its three steps, and the replies.

SendAway writes all of it to a file that both engines find, in a folder or in a store, and the session does nothing more
where it is. TakeIn reads the file in the other engine and decides that it is there now. SettleMove tells the first
engine to look at that decision, or to make the other one: where nothing was decided, the session stays.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.naming import MOST_CHARACTERS
from djinn_jupyter.wire.opening import Opened
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, SessionRequest

MoveId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
MovePlace = Annotated[str, Meta(max_length=1024)] | None
"""The address of a store that both engines were given, or None for the folder that both have."""


class TakeIn(SessionRequest[Opened], makes="session", fills=True, while_away=True, without_rows=True):
    """Open `session` as another engine has written it for this move. From the reply on it is here, and not there."""

    move: MoveId
    store: MovePlace = None


class ProvenanceRead(ReplyBase):
    """`stores` are those where the engine looks for sessions on their way: of its journal, and of `--moves`.
    `folder`: it looks in a folder too, which need not be the other engine's. `person` is who asks, by a key; None is
    the engine's own user."""

    provenance: Provenance
    stores: tuple[str, ...] = ()
    folder: bool = True
    person: str | None = None


class ReadProvenance(RequestBase[ProvenanceRead], resent="anew"):
    """The model and the machine of this engine. Its fingerprint is that, but for the model's name and revision."""


class SentAway(ReplyBase):
    bytes_written: int


class SendAway(OwnerRequest[SentAway]):
    """Write the whole session for the engine of that provenance, as a move that the client names. FingerprintsDiffer
    where it would go on with other bits there. Until the move is settled, the session answers nothing here. `person`
    is who its mover is at that engine, and may take it in there alone; None is that engine's own user."""

    to: Provenance
    move: MoveId
    store: MovePlace = None
    person: Annotated[str, Meta(max_length=MOST_CHARACTERS)] | None = None

    @property
    def deed(self) -> str | None:
        return "move it away"


class MoveSettled(ReplyBase):
    """`stayed`: the session is here."""

    stayed: bool


MoveReply = ProvenanceRead | SentAway | MoveSettled


class SettleMove(SessionRequest[MoveSettled], opens=True, while_running=True, at_once=True):
    """Close the session where another engine has taken it in; otherwise it stays, and is not taken in any more."""

    move: MoveId
