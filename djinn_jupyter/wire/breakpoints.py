"""Breakpoints of a session."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.limits import ConditionText, Spelling
from djinn_jupyter.wire.nouns import BreakpointDescription
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest


class BreakpointSet(ReplyBase):
    breakpoint: BreakpointDescription
    existed: bool


class SetBreakpoint(SessionRequest[BreakpointSet], shared="write", browser="asks", while_running=True):
    site: Spelling
    when: ConditionText | None = None
    once: bool = False


class EnableBreakpoint(SessionRequest[BreakpointSet], shared="write", browser="asks", while_running=True):
    number: int
    enabled: bool


class ClearBreakpoints(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`sites` None clears all; otherwise spellings or numbers."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=10_000)] | None = None
