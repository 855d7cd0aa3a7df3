"""The replies of an engine: an outcome for every request, or Failed. Between them events, in the past tense."""

from __future__ import annotations

from djinn_jupyter.wire.adapters import AdapterAdded, Adapters
from djinn_jupyter.wire.added_modules import AddedModules, ModuleAdded
from djinn_jupyter.wire.breakpoints import BreakpointSet
from djinn_jupyter.wire.checking import Checked
from djinn_jupyter.wire.checkpoints import Checkpoints, CheckpointSaved
from djinn_jupyter.wire.event_base import EventBase
from djinn_jupyter.wire.failed import Failed
from djinn_jupyter.wire.figures import Compared, FiguresRead
from djinn_jupyter.wire.greeting import Departed, Pong, ShuttingDown, Welcome
from djinn_jupyter.wire.history import History, Tree
from djinn_jupyter.wire.interventions import Edited, Steered
from djinn_jupyter.wire.listening import EventsMissed, Listening
from djinn_jupyter.wire.listing import Sessions, Statistics
from djinn_jupyter.wire.looks import Effect, Evaluated, Inspected, LensRead
from djinn_jupyter.wire.model import Modules, Tokenized
from djinn_jupyter.wire.moving import MoveSettled, ProvenanceRead, SentAway
from djinn_jupyter.wire.naming import OwnName
from djinn_jupyter.wire.nouns import FinishReason, PauseReason, StopIdentity, Transfer
from djinn_jupyter.wire.opening import Closed, Described, Detached, Opened
from djinn_jupyter.wire.passes import PassRead, Reached
from djinn_jupyter.wire.people import People
from djinn_jupyter.wire.pieces import Dropped, InPieces, PieceRead, PieceTaken
from djinn_jupyter.wire.pooling import PooledRead
from djinn_jupyter.wire.progress import WorkProgressed
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.running import Finished, Logits, MetricsRead, Paused, Pausing
from djinn_jupyter.wire.swapping import Noted, Swapped, WeightsMoved
from djinn_jupyter.wire.watches import Watching, WatchRead
from djinn_jupyter.wire.weights import Copies, WeightRead

Reply = ReplyBase
Event = EventBase


class SessionOpened(EventBase): ...


class SessionClosed(EventBase): ...


class SessionRunning(EventBase): ...


class TokenSampled(EventBase):
    """`text` is what the streamed text gained; it may be empty while a character is incomplete."""

    step: int
    token: int
    text: str


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
    """A steering rule could not be applied at a pass, for the first time in this run. The run goes on without it."""

    number: int
    message: str


class SessionSwapped(EventBase):
    transfer: Transfer


class SessionChanged(EventBase):
    """Its breakpoints, rules, watches or holder are others than before."""
