"""Requests that open, describe, fork and close a session, and the replies to them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.wire.base import MOST_CHARACTERS, Access, Cleared, OwnerName, ReplyBase
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.nouns import (
    AttentionName,
    CheckpointDescription,
    EngineStatistics,
    SamplingChanges,
    SessionDescription,
)
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.request_base import (
    OwnerRequest,
    OwnName,
    Positions,
    RequestBase,
    Seed,
    SessionRequest,
    Spelling,
    StopRequest,
)


class Opened(ReplyBase):
    """`note`: stored work under this name that is not in the session, and why."""

    session: SessionDescription
    created: bool
    note: str | None = None


class Open(OwnerRequest[Opened], browser="opens", makes="session", while_running=True, at_once=True):
    """Open or attach. A live session of another holder needs `join`.

    `fresh` first discards tokens, breakpoints and rules, and with `force` joins too. A new `temporary` session, such as
    a sweep's, is closed when its holder leaves, and is not in the journal.
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
    """Choose the attention of an empty session: `eager`, or as the model was loaded."""

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
    """Make a session `name` with the same tokens, stop and rules; the two share pages until one writes. With a `seed`
    or `sampling` its run draws so from the stop on. With an `edit` its keys (site `k_rot.N`) or values (`v.N`) at
    committed `positions` are edited, None for all of them; `words` describe the edit. With a `coef` its steering rule
    number `rule`, None for its only one, is on with that coefficient."""

    name: OwnName
    seed: Seed | None = None
    edit: Edit | None = None
    site: Spelling | None = None
    positions: Positions | None = None
    words: Spelling | None = None
    rule: int | None = None
    coef: float | None = None
    sampling: SamplingChanges | UnsetType = UNSET


TRIES: Final = 5


class Sessions(ReplyBase):
    """A page of the `total` sessions, from the `first` on."""

    sessions: tuple[SessionDescription, ...]
    first: int = 0
    total: int = 0


class ListSessions(RequestBase[Sessions], unasked="view", browser="asks", resent="anew"):
    """List the sessions in the order of opening, from the `first` on."""

    first: Annotated[int, Meta(ge=0)] = 0


Listed = Generator[ListSessions, Sessions, tuple[SessionDescription, ...]]


def listed() -> Listed:
    """Yield the requests of all pages, and return their sessions. Where some were opened or closed meanwhile, all are
    requested again, a few times."""
    for _ in range(TRIES):
        page = yield ListSessions()
        found, total = {one.name: one for one in page.sessions}, page.total
        at = len(page.sessions)
        while page.sessions and page.total == total and at < total:
            page = yield ListSessions(first=at)
            found.update((one.name, one) for one in page.sessions)
            at += len(page.sessions)
        if page.total == total:
            break
    return tuple(found.values())


class Statistics(ReplyBase):
    statistics: EngineStatistics


class ReadStatistics(RequestBase[Statistics], unasked="view", browser="asks", resent="anew"): ...


class RestoreCheckpoint(
    OwnerRequest[Opened], browser="opens", makes="session", fills=True, while_away=True, without_rows=True
):
    """Open `session` in the state that the checkpoint `name` (or the file at that path) saved. A session of that name
    is replaced only with `replace`, one of another notebook only with `force` as well."""

    name: OwnName
    replace: bool = False

    @property
    def deed(self) -> str | None:
        return "restore over it" if self.replace else None


class DropCheckpoint(RequestBase[Cleared], browser="asks", resent="refused"):
    name: OwnName


class CheckpointSaved(ReplyBase):
    """`path` is the path of the file, empty for a person with a key, who uses its name."""

    checkpoint: CheckpointDescription
    path: str


class SaveCheckpoint(SessionRequest[CheckpointSaved], shared="write", browser="asks", saves="name", changes=False):
    """Save the session's state in a file called `name`. A file of that name is replaced only with `replace`."""

    name: OwnName
    replace: bool = False


class Checkpoints(ReplyBase):
    """The checkpoints that the caller may see, newest first. `left_out`: so many older ones can be restored by name."""

    checkpoints: tuple[CheckpointDescription, ...]
    left_out: int = 0


class ListCheckpoints(RequestBase[Checkpoints], browser="asks", resent="anew"): ...


class Share(SessionRequest[Described], while_running=True, at_once=True):
    """Share an own session with a person, or revoke that (`access` None). They prefix its name with its owner's:
    `anna@main`."""

    person: OwnerName
    access: Access | None

    @property
    def needs_others(self) -> str | None:
        if self.access is None:
            return None
        return (
            f"No {self.person} is admitted here, so a session cannot be shared with them: mind the spelling, or ask "
            "the engine's user to admit them first (`djinn key allow`); in a JupyterHub they load once."
        )


# Moves of a session between two engines of one model: the requests of its three steps, and the replies. SendAway writes
# the session to a file that both engines find, in a folder or in a store, and the session does nothing more where it
# is. TakeIn reads the file in the other engine and decides that it is there now. SettleMove tells the first engine to
# read that decision, or to make the other one: without a decision, the session stays.

MoveId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
MovePlace = Annotated[str, Meta(max_length=1024)] | None
"""The address of a store that both engines were given, or None for the folder that both have."""


class TakeIn(SessionRequest[Opened], makes="session", fills=True, while_away=True, without_rows=True):
    """Open `session` from the file that another engine has written for this move. After the reply it is here, and not
    there."""

    move: MoveId
    store: MovePlace = None


class ProvenanceRead(ReplyBase):
    """`stores` are the places where the engine looks for moving sessions: of its journal, and of `--moves`. `folder`:
    it looks in a folder too, which may differ from the other engine's. `person` is the caller, by a key; None is the
    engine's own user."""

    provenance: Provenance
    stores: tuple[str, ...] = ()
    folder: bool = True
    person: str | None = None


class ReadProvenance(RequestBase[ProvenanceRead], resent="anew"):
    """The model and the machine of this engine. Its fingerprint is the same without the model's name and revision."""


class SentAway(ReplyBase):
    bytes_written: int


class SendAway(OwnerRequest[SentAway]):
    """Write the whole session for the engine of that provenance, as a move that the client names. FingerprintsDiffer
    where it would continue with other bits there. Until the move is settled, the session answers nothing here. `person`
    is its mover at that engine, who alone may take it in there; None is that engine's own user."""

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


class SettleMove(SessionRequest[MoveSettled], opens=True, while_running=True, at_once=True):
    """Close the session if another engine has taken it in; otherwise it stays, and can no longer be taken in."""

    move: MoveId
