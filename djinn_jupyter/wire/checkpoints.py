"""Checkpoint files: the requests that write, read and drop them, and the replies."""

from __future__ import annotations

from djinn_jupyter.wire.limits import OwnName
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.opening import Opened
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, SessionRequest


class RestoreCheckpoint(
    OwnerRequest[Opened], browser="opens", makes="session", fills=True, while_away=True, without_rows=True
):
    """Open `session` as it was when the checkpoint `name` (or the file at that path) was saved. A session of that name
    is replaced only with `replace`, one of another notebook only with `force` besides."""

    name: OwnName
    replace: bool = False

    @property
    def deed(self) -> str | None:
        return "restore over it" if self.replace else None


class DropCheckpoint(RequestBase[Cleared], browser="asks", resent="refused"):
    name: OwnName


class CheckpointSaved(ReplyBase):
    """`path` is that of the file, empty for a person with a key, who has it by its name."""

    checkpoint: CheckpointDescription
    path: str


class SaveCheckpoint(SessionRequest[CheckpointSaved], shared="write", browser="asks", saves="name", changes=False):
    """Keep the session as it stands in a file called `name`. A file of that name is replaced only with `replace`."""

    name: OwnName
    replace: bool = False


class Checkpoints(ReplyBase):
    """The checkpoints that the asker may see, newest first. `left_out`: so many older ones can be restored by name."""

    checkpoints: tuple[CheckpointDescription, ...]
    left_out: int = 0


class ListCheckpoints(RequestBase[Checkpoints], browser="asks", resent="anew"): ...
