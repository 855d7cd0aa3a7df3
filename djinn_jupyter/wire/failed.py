"""The reply in place of any other: a request was refused, or it failed."""

from __future__ import annotations

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.reply_base import ReplyBase


class Failed(ReplyBase):
    """`code` is the class of `djinn_jupyter.errors` to raise; `message` says what is wrong and what to do."""

    code: str
    message: str

    @classmethod
    def of(cls, error: DjinnError) -> Failed:
        """Return the reply that raises this error again at the caller."""
        return cls(code=error.code, message=str(error))
