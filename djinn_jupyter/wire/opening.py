"""Requests that open, describe, fork and close a session, and the replies to them."""

from __future__ import annotations

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.limits import OwnName, Positions, Seed, Spelling
from djinn_jupyter.wire.nouns import AttentionName, SessionDescription
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import OwnerRequest, SessionRequest, StopRequest


class Open(OwnerRequest, frozen=True, tag="Open"):
    """Open or attach. A live session of another holder needs `join`.

    `fresh` forgets tokens, breakpoints and rules first, and with `force` joins too. A new session that is `temporary`,
    as a sweep's, is closed when its holder goes, and is not in the journal.
    """

    join: bool = False
    fresh: bool = False
    temporary: bool = False


class Describe(SessionRequest, frozen=True, tag="Describe"): ...


class SetAttention(SessionRequest, frozen=True, tag="SetAttention"):
    """Choose how a session that holds nothing yet computes attention: `eager`, or as the model was loaded."""

    attention: AttentionName


class Detach(SessionRequest, frozen=True, tag="Detach"): ...


class Close(OwnerRequest, frozen=True, tag="Close"): ...


class Fork(StopRequest, frozen=True, tag="Fork"):
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


class Opened(ReplyBase, frozen=True, tag="Opened"):
    """`note`: what was kept under this name and is not in the session, and why."""

    session: SessionDescription
    created: bool
    note: str | None = None


class Described(ReplyBase, frozen=True, tag="Described"):
    session: SessionDescription


class Detached(ReplyBase, frozen=True, tag="Detached"): ...


class Closed(ReplyBase, frozen=True, tag="Closed"):
    pages_freed: int
