"""Replies about checkpoint files."""

from __future__ import annotations

from djinn_jupyter.wire.nouns import CheckpointDescription
from djinn_jupyter.wire.reply_base import ReplyBase


class CheckpointSaved(ReplyBase, frozen=True, tag="CheckpointSaved"):
    checkpoint: CheckpointDescription
    path: str


class Checkpoints(ReplyBase, frozen=True, tag="Checkpoints"):
    checkpoints: tuple[CheckpointDescription, ...]
