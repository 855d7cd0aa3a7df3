"""The replies of an engine: an outcome for every request, or Failed. Between them events, in the past tense."""

from __future__ import annotations

from djinn_jupyter.wire import (
    adapters,
    added_modules,
    attribution,
    checking,
    checkpoints,
    collecting,
    edges,
    figures,
    graphs,
    greeting,
    heads,
    listening,
    listing,
    looks,
    moving,
    opening,
    passes,
    people,
    pieces,
    pooling,
    progress,
    scoring,
    swapping,
    sweeps,
    watches,
    weights,
)
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.event_base import EventBase as EventBase
from djinn_jupyter.wire.failed import Failed as Failed
from djinn_jupyter.wire.naming import OwnName
from djinn_jupyter.wire.nouns import (
    BreakpointDescription,
    EngineStatistics,
    FinishReason,
    ModuleDescription,
    PauseReason,
    RuleDescription,
    StopDescription,
    StopIdentity,
    TopToken,
    Transfer,
)
from djinn_jupyter.wire.readings import Branch, Influences
from djinn_jupyter.wire.reply_base import ReplyBase as ReplyBase

AddedModules = added_modules.AddedModules
AdapterAdded = adapters.AdapterAdded
Adapters = adapters.Adapters
Attributed = attribution.Attributed
CheckpointSaved = checkpoints.CheckpointSaved
Checkpoints = checkpoints.Checkpoints
Collected = collecting.Collected
CollectionProgressed = collecting.CollectionProgressed
Effect = looks.Effect
HeadsRead = heads.HeadsRead
Welcome = greeting.Welcome
Departed = greeting.Departed
Pong = greeting.Pong
LensRead = looks.LensRead
Sessions = listing.Sessions
Listening = listening.Listening
EventsMissed = listening.EventsMissed
ModuleAdded = added_modules.ModuleAdded
MetricsRead = sweeps.MetricsRead
PassRead = passes.PassRead
Reached = passes.Reached
Inspected = looks.Inspected
PooledRead = pooling.PooledRead
FiguresRead = figures.FiguresRead
Compared = figures.Compared
Scored = scoring.Scored
EdgesAttributed = edges.EdgesAttributed
GraphMade = graphs.GraphMade
CircuitsRun = edges.CircuitsRun
Swept = sweeps.Swept
SweepProgressed = sweeps.SweepProgressed
WorkProgressed = progress.WorkProgressed
Opened = opening.Opened
Described = opening.Described
Detached = opening.Detached
Closed = opening.Closed
People = people.People
Swapped = swapping.Swapped
WeightsMoved = swapping.WeightsMoved
Watching = watches.Watching
WatchRead = watches.WatchRead
WeightRead = weights.WeightRead
Copies = weights.Copies
ProvenanceRead = moving.ProvenanceRead
SentAway = moving.SentAway
MoveSettled = moving.MoveSettled


class Modules(ReplyBase, frozen=True, tag="Modules"):
    modules: tuple[ModuleDescription, ...]


class Tokenized(ReplyBase, frozen=True, tag="Tokenized"):
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    text: str


class Statistics(ReplyBase, frozen=True, tag="Statistics"):
    statistics: EngineStatistics


class ShuttingDown(ReplyBase, frozen=True, tag="ShuttingDown"):
    """`sessions_kept` are in the journal and come back with the next engine of this model."""

    sessions_lost: tuple[str, ...]
    sessions_kept: tuple[str, ...] = ()


class Pausing(ReplyBase, frozen=True, tag="Pausing"):
    """The run will stop at its next layer boundary, or the work reply with its parts; `was_running` is False when there
    was nothing to stop."""

    was_running: bool


class Paused(ReplyBase, frozen=True, tag="Paused"):
    """A forward pass that stands still.

    `layer` layers have run in this pass, layers `layer`.. have not (a stop inside layer n has run n whole layers).
    `step` 0 is the prompt, n the n-th generated token. `positions` are the absolute positions of this pass.
    `site` is as it was named, and `shape`, `norms` and `values` are of its selected heads or features. `norms` are L2
    norms at each position of the pass, over all other axes; `values` the numbers themselves where a position has one
    alone, as one feature does, else None: what `norm` and `value` are in a condition. `matched` is the position
    for which the breakpoint's condition held. `also` names further breakpoints met at the same place. `edits` are those
    of this very stop, as a person would say them; `influences` all that makes it other than the model alone would.
    `texts` are single tokens, bytes of a longer character as `<0xD9>`; `prompt_text` and `new_text`, put together, are
    the line decoded as a whole. `log_probabilities` are those of the new tokens under the model's own fp32 logits,
    before temperature and the like; None where they were not kept.
    """

    session: OwnName
    stop: StopIdentity
    site: str
    reason: PauseReason
    breakpoint: BreakpointDescription | None
    also: tuple[str, ...]
    matched: int | None
    step: int
    layer: int
    layers: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    prompt_tokens: int
    prompt_text: str
    new_text: str
    log_probabilities: tuple[float | None, ...]
    shape: tuple[int, ...]
    axes: str
    dtype: str
    norms: tuple[float, ...]
    edits: tuple[str, ...]
    history_index: int
    history_length: int
    layers_run: int
    influences: Influences = Influences()
    values: tuple[float, ...] | None = None


class Finished(ReplyBase, frozen=True, tag="Finished"):
    """A run that reached its end. `tokens` are the new ids of this run, over all its stops; `top` the distribution they
    ended with: of the position after the last token fed. `layers_run` and `passes` count
    the way that led to this result, from the run's beginning on: what was run and then gone back on is not in them.
    `ignored_defaults` are the model's own generation settings that were not applied. `texts` are single tokens, bytes
    of a longer character as `<0xD9>`; `prompt_text` and `text`, put together, are the line decoded as a whole.
    `log_probabilities` are as in Paused. `shared`: passes shared with other runs; `note`: why `fast` shared none, and
    whether the tokenizer's first token stands twice. `largest_difference`: of shared logits, where a pass of this
    row was drawn and computed again alone."""

    session: OwnName
    stop: StopIdentity
    reason: FinishReason
    detail: str | None
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    text: str
    prompt_tokens: tuple[int, ...]
    prompt_texts: tuple[str, ...]
    prompt_text: str
    log_probabilities: tuple[float | None, ...]
    top: tuple[TopToken, ...]
    rules: tuple[RuleDescription, ...]
    ignored_defaults: tuple[str, ...]
    layers_run: int
    passes: int
    shared: int = 0
    note: str | None = None
    largest_difference: float | None = None


class BreakpointSet(ReplyBase, frozen=True, tag="BreakpointSet"):
    breakpoint: BreakpointDescription
    existed: bool


class Cleared(ReplyBase, frozen=True, tag="Cleared"):
    count: int


class Edited(ReplyBase, frozen=True, tag="Edited"):
    """The effect of an edit. `shape` is the shape touched, `relative_size` = |after - before| / |before| over that
    part. `stop` has the edition that it made."""

    stop: StopIdentity
    site: str
    edit: str
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    norm_before: float
    norm_after: float
    relative_size: float | None
    entries_changed: int


class Steered(ReplyBase, frozen=True, tag="Steered"):
    rule: RuleDescription
    existed: bool


class Evaluated(ReplyBase, frozen=True, tag="Evaluated"):
    """`value` of the expression at the absolute `position`."""

    stop: StopIdentity
    value: bool | int | float | str
    site: str
    position: int


class Logits(ReplyBase, frozen=True, tag="Logits"):
    stop: StopIdentity
    logits: Array


class History(ReplyBase, frozen=True, tag="History"):
    stops: tuple[StopDescription, ...]
    present: int | None


class Tree(ReplyBase, frozen=True, tag="Tree"):
    """One branch for each session, in the order of opening: a fork after its parent, where that is still there."""

    branches: tuple[Branch, ...]


class Noted(ReplyBase, frozen=True, tag="Noted"): ...


Reply = (
    Failed
    | Welcome
    | Departed
    | Pong
    | Listening
    | Modules
    | ModuleAdded
    | AddedModules
    | AdapterAdded
    | Adapters
    | WeightRead
    | Tokenized
    | Statistics
    | Sessions
    | People
    | ShuttingDown
    | Opened
    | Described
    | Detached
    | Closed
    | Pausing
    | Paused
    | Finished
    | BreakpointSet
    | Cleared
    | Edited
    | Effect
    | Steered
    | Inspected
    | Reached
    | PooledRead
    | FiguresRead
    | Compared
    | PassRead
    | LensRead
    | Attributed
    | Swept
    | EdgesAttributed
    | GraphMade
    | CircuitsRun
    | MetricsRead
    | Collected
    | checking.Checked
    | Scored
    | HeadsRead
    | Evaluated
    | Watching
    | WatchRead
    | Logits
    | History
    | Tree
    | Swapped
    | WeightsMoved
    | Copies
    | CheckpointSaved
    | Checkpoints
    | moving.MoveReply
    | Noted
    | pieces.InPieces
    | pieces.PieceRead
    | pieces.Dropped
    | pieces.PieceTaken
)


class SessionOpened(EventBase, frozen=True, tag="SessionOpened"): ...


class SessionClosed(EventBase, frozen=True, tag="SessionClosed"): ...


class SessionRunning(EventBase, frozen=True, tag="SessionRunning"): ...


class TokenSampled(EventBase, frozen=True, tag="TokenSampled"):
    """`text` is what the streamed text gained; it may be empty while a character is incomplete."""

    step: int
    token: int
    text: str


class SessionPaused(EventBase, frozen=True, tag="SessionPaused"):
    stop: StopIdentity
    site: str
    step: int
    reason: PauseReason


class SessionFinished(EventBase, frozen=True, tag="SessionFinished"):
    stop: StopIdentity
    reason: FinishReason
    new_tokens: int


class SessionEdited(EventBase, frozen=True, tag="SessionEdited"):
    """The value at its stop was edited or reverted; `stop` has the new edition."""

    stop: StopIdentity


class SessionFailed(EventBase, frozen=True, tag="SessionFailed"):
    code: str
    message: str


class RuleRefused(EventBase, frozen=True, tag="RuleRefused"):
    """A steering rule could not be applied at a pass, for the first time in this run. The run goes on without it."""

    number: int
    message: str


class SessionSwapped(EventBase, frozen=True, tag="SessionSwapped"):
    transfer: Transfer


class SessionChanged(EventBase, frozen=True, tag="SessionChanged"):
    """Its breakpoints, rules, watches or holder are others than before."""


Event = (
    SessionOpened
    | SessionClosed
    | SessionRunning
    | TokenSampled
    | SessionPaused
    | SessionFinished
    | SessionEdited
    | SessionFailed
    | RuleRefused
    | SessionSwapped
    | SessionChanged
    | SweepProgressed
    | CollectionProgressed
    | WorkProgressed
    | EventsMissed
)
