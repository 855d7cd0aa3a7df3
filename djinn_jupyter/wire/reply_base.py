"""The fields of every reply."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen


class ReplyBase(Frozen, kw_only=True, tag_field="reply"):
    """The one answer to a request. `not_kept`: one sentence where what the request did is in memory alone, because its
    session cannot be written to the journal now; an engine that dies loses it."""

    not_kept: str | None = None


class Cleared(ReplyBase):
    count: int
