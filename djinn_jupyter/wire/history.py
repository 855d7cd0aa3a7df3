"""The stops of a session, and of all of them with their forks."""

from __future__ import annotations

from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest


class History(ReplyBase):
    stops: tuple[StopDescription, ...]
    present: int | None


class Tree(ReplyBase):
    """One branch for each session, in the order of opening: a fork after its parent, where that is still there."""

    branches: tuple[Branch, ...]


class ReadHistory(SessionRequest[History], shared="read", browser="asks", resent="anew", while_running=True): ...


class ReadTree(RequestBase[Tree], browser="asks", resent="anew"):
    """The stops of all sessions, and which forks they share them with."""
