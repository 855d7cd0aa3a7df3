"""The replies of an engine: an outcome for every request, or Failed. Also the events between them, in the past
tense."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from djinn_jupyter.wire.base import Cleared, EventBase, Failed, ReplyBase, WorkProgressed
from djinn_jupyter.wire.greeting import *
from djinn_jupyter.wire.looks import *
from djinn_jupyter.wire.modules import *
from djinn_jupyter.wire.nouns import FinishReason, PauseReason, StopIdentity, Transfer
from djinn_jupyter.wire.people import *
from djinn_jupyter.wire.pieces import *
from djinn_jupyter.wire.readings import *
from djinn_jupyter.wire.running import *
from djinn_jupyter.wire.sessions import *
from djinn_jupyter.wire.weights import *

Reply = ReplyBase
Event = EventBase


class SessionOpened(EventBase): ...


class SessionClosed(EventBase): ...


class SessionRunning(EventBase): ...


class TokenSampled(EventBase):
    """`text` is what the streamed text gained; it may be empty while a character is incomplete. `log_probability` is
    that of the token, as in Finished."""

    step: int
    token: int
    text: str
    log_probability: float | UnsetType = UNSET


class SessionPaused(EventBase):
    stop: StopIdentity
    site: str
    step: int
    reason: PauseReason


class SessionFinished(EventBase):
    stop: StopIdentity
    reason: FinishReason
    new_tokens: int


class SessionEdited(EventBase):
    """The value at its stop was edited or reverted; `stop` has the new edition."""

    stop: StopIdentity


class SessionFailed(EventBase):
    code: str
    message: str


class RuleRefused(EventBase):
    """A steering rule could not be applied in a pass, for the first time in this run. The run continues without it."""

    number: int
    message: str


class SessionSwapped(EventBase):
    transfer: Transfer


class SessionChanged(EventBase):
    """Its breakpoints, rules, watches or holder have changed."""
