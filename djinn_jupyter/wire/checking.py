"""The reply to a question before work is spread over engines: would this one begin it?"""

from __future__ import annotations

from djinn_jupyter.wire.reply_base import ReplyBase


class Checked(ReplyBase):
    """The work would begin. `alike` is what all shards of a collection have to say of their values alike, by its names;
    empty for a sweep."""

    alike: tuple[tuple[str, str], ...] = ()
