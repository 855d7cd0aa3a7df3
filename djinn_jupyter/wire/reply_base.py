"""The fields of every reply."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire.frozen import Frozen


class ReplyBase(Frozen, kw_only=True, tag_field="reply"):
    """The one answer to a request. `not_kept`: one sentence where what the request did is in memory alone, because its
    session cannot be written to the journal now; an engine that dies loses it."""

    not_kept: str | None = None

    def is_whole_for(self, request: Any) -> bool:
        """Return whether it has all parts that its request asked for: work that is interrupted keeps those done."""
        return True


class Cleared(ReplyBase):
    count: int
