"""Requests that open, describe, fork and close a session, and the replies to them."""

from __future__ import annotations

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.limits import OwnName, Positions, Seed, Spelling
from djinn_jupyter.wire.nouns import AttentionName, SessionDescription
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import OwnerRequest, SessionRequest, StopRequest


class Opened(ReplyBase):
    """`note`: what was kept under this name and is not in the session, and why."""

    session: SessionDescription
    created: bool
    note: str | None = None


class Open(OwnerRequest[Opened], browser="opens", makes="session", while_running=True, at_once=True):
    """Open or attach. A live session of another holder needs `join`.

    `fresh` forgets tokens, breakpoints and rules first, and with `force` joins too. A new session that is `temporary`,
    as a sweep's, is closed when its holder goes, and is not in the journal.
    """

    join: bool = False
    fresh: bool = False
    temporary: bool = False

    @property
    def deed(self) -> str | None:
        return "forget what it holds" if self.fresh else None


class Described(ReplyBase):
    session: SessionDescription


class Describe(
    SessionRequest[Described], shared="read", browser="asks", resent="anew", while_running=True, at_once=True
): ...


class SetAttention(SessionRequest[Described], shared="write"):
    """Choose how a session that holds nothing yet computes attention: `eager`, or as the model was loaded."""

    attention: AttentionName


class AcceptRecomputed(SessionRequest[Described], shared="write", browser="asks", while_running=True):
    """The user has seen that the session was recomputed after a recovery; from now on it counts as exact again."""


class Detached(ReplyBase): ...


class Detach(SessionRequest[Detached], shared="read", changes=False, while_running=True, at_once=True): ...


class Closed(ReplyBase):
    pages_freed: int


class Close(OwnerRequest[Closed], browser="asks", while_running=True, while_looking=True, at_once=True):
    @property
    def deed(self) -> str | None:
        return "close it"


class Fork(StopRequest[Opened], shared="read", browser="opens", makes="name", fills=True):
    """Make a session `name` with the same tokens, stop and rules; pages are shared until one of the two writes. With a
    `seed` it draws from here on as a run that begins with that seed. With an `edit` its keys (site `k_rot.N`) or values
    (`v.N`) at committed `positions` are edited, None for all of them; `words` say what the edit was made of. With a
    `coef` its steering rule of number `rule`, None for its only one, is on with that coefficient."""

    name: OwnName
    seed: Seed | None = None
    edit: Edit | None = None
    site: Spelling | None = None
    positions: Positions | None = None
    words: Spelling | None = None
    rule: int | None = None
    coef: float | None = None
