"""Checkpoint files: the requests that write, read and drop them, and the replies."""

from __future__ import annotations

from djinn_jupyter.wire.limits import OwnName
from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, SessionRequest


class SaveCheckpoint(SessionRequest, frozen=True, tag="SaveCheckpoint"):
    """Keep the session as it stands in a file called `name`. A file of that name is replaced only with `replace`."""

    name: OwnName
    replace: bool = False


class RestoreCheckpoint(OwnerRequest, frozen=True, tag="RestoreCheckpoint"):
    """Open `session` as it was when the checkpoint `name` (or the file at that path) was saved. A session of that name
    is replaced only with `replace`, one of another notebook only with `force` besides."""

    name: OwnName
    replace: bool = False


class ListCheckpoints(RequestBase, frozen=True, tag="ListCheckpoints"): ...


class DropCheckpoint(RequestBase, frozen=True, tag="DropCheckpoint"):
    name: OwnName


class CheckpointSaved(ReplyBase, frozen=True, tag="CheckpointSaved"):
    """`path` is that of the file, empty for a person with a key, who has it by its name."""

    checkpoint: CheckpointDescription
    path: str


class Checkpoints(ReplyBase, frozen=True, tag="Checkpoints"):
    """The checkpoints that the asker may see, newest first. `left_out`: so many older ones can be restored by name."""

    checkpoints: tuple[CheckpointDescription, ...]
    left_out: int = 0
