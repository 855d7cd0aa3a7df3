"""The requests to an engine, in the imperative. Every request gets exactly one reply.

    request                     answered by
    Hello                       Welcome
    Goodbye                     Departed
    Ping                        Pong
    Listen / Unlisten           Listening, at once; then events
    ListModules / ReadWeight    Modules / WeightRead
    AddModule / RemoveModule    ModuleAdded / Cleared
    ListAddedModules            AddedModules
    AddAdapter / RemoveAdapter  AdapterAdded / Cleared
    ListAdapters / SetAdapter   Adapters / Described
    Tokenize / Detokenize       Tokenized
    ReadStatistics              Statistics
    ListSessions / ReadPeople   Sessions / People
    Shutdown                    ShuttingDown
    Open / Fork                 Opened
    Detach / Close              Detached / Closed
    Run / Resume / Step         Paused or Finished, when the run stops
    ResumeWith                  Reached, or Finished
    Pause                       Pausing, at once; the run itself is answered by Paused
    Back                        Paused
    SetBreakpoint               BreakpointSet
    ClearBreakpoints            Cleared
    EnableBreakpoint            BreakpointSet
    ApplyEdit / RevertEdits     Edited / Paused
    MeasureEffect               Effect
    Steer / Unsteer             Steered / Cleared
    EnableRule / EnableEdit     Steered / Paused
    Inspect / ReadPass          Inspected / PassRead
    ReadPooled / Lens           PooledRead / LensRead
    ReadFigures / Compare       FiguresRead / Compared
    Attribute                   Attributed
    AttributeEdges / MakeGraph  EdgesAttributed / GraphMade
    RunCircuits                 CircuitsRun
    Sweep / Score / ReadHeads   Swept / Scored / HeadsRead
    Collect                     Collected, when the shard is on the disk, or with its content
    CheckCollect / CheckSweep   Checked
    Evaluate                    Evaluated
    Watch / Unwatch / ReadWatch Watching / Cleared / WatchRead
    ReadStop                    Paused
    ReadLogits / ReadMetrics    Logits / MetricsRead
    ReadHistory / ReadTree      History / Tree
    Describe                    Described
    SetAttention / Share        Described
    SwapOut / SwapIn            Swapped, when the bytes have moved
    Rest                        Described
    Sleep / Wake                WeightsMoved
    ReadCopies                  Copies
    SaveCheckpoint              CheckpointSaved
    RestoreCheckpoint / ListCheckpoints  Opened / Checkpoints
    DropCheckpoint              Cleared
    AcceptRecomputed            Described
    ReadProvenance              ProvenanceRead
    SendAway / TakeIn           SentAway, when the file is whole / Opened
    SettleMove                  MoveSettled
    Note                        Noted
    ReadPiece / DropPieces      PieceRead / Dropped, of a large message over a line
    PutPiece / Assemble         PieceTaken, of a large request over a line / its own reply
Any of them may be answered by Failed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from djinn_jupyter.wire import (
    adapters,
    added_modules,
    checking,
    checkpoints,
    collecting,
    edges,
    figures,
    graphs,
    greeting,
    heads,
    interventions,
    listening,
    listing,
    moving,
    opening,
    passes,
    people,
    pieces,
    pooling,
    scoring,
    sharing,
    swapping,
    sweeps,
    watches,
    weights,
)
from djinn_jupyter.wire.limits import (
    ConditionText,
    Count,
    OneOrTwo,
    Spelling,
    StopStrings,
    Text,
    Tokens,
    require_computable,
)
from djinn_jupyter.wire.nouns import Activity, Mode, Sampling
from djinn_jupyter.wire.request_base import OwnerRequest as OwnerRequest
from djinn_jupyter.wire.request_base import RequestBase as RequestBase
from djinn_jupyter.wire.request_base import SessionRequest as SessionRequest
from djinn_jupyter.wire.request_base import StopRequest as StopRequest

AddAdapter = adapters.AddAdapter
ListAdapters = adapters.ListAdapters
RemoveAdapter = adapters.RemoveAdapter
SetAdapter = adapters.SetAdapter
AddModule = added_modules.AddModule
ListAddedModules = added_modules.ListAddedModules
RemoveModule = added_modules.RemoveModule
Collect = collecting.Collect
ApplyEdit = interventions.ApplyEdit
EnableEdit = interventions.EnableEdit
EnableRule = interventions.EnableRule
MeasureEffect = interventions.MeasureEffect
RevertEdits = interventions.RevertEdits
Steer = interventions.Steer
Unsteer = interventions.Unsteer
ReadHeads = heads.ReadHeads
ReadWeight = weights.ReadWeight
Hello = greeting.Hello
Goodbye = greeting.Goodbye
Ping = greeting.Ping
ListSessions = listing.ListSessions
Listen = listening.Listen
Unlisten = listening.Unlisten
Open = opening.Open
Describe = opening.Describe
SetAttention = opening.SetAttention
Detach = opening.Detach
Close = opening.Close
Fork = opening.Fork
ReadPeople = people.ReadPeople
ReadPiece = pieces.ReadPiece
DropPieces = pieces.DropPieces
Inspect = passes.Inspect
Lens = passes.Lens
ReadPass = passes.ReadPass
ResumeWith = passes.ResumeWith
ReadPooled = pooling.ReadPooled
ReadFigures = figures.ReadFigures
Compare = figures.Compare
Score = scoring.Score
Share = sharing.Share
AttributeEdges = edges.AttributeEdges
MakeGraph = graphs.MakeGraph
RunCircuits = edges.RunCircuits
Sweep = sweeps.Sweep
ReadMetrics = sweeps.ReadMetrics
ReadWatch = watches.ReadWatch
Unwatch = watches.Unwatch
Watch = watches.Watch
SwapOut = swapping.SwapOut
SwapIn = swapping.SwapIn
Rest = swapping.Rest
Sleep = swapping.Sleep
Wake = swapping.Wake
ReadCopies = swapping.ReadCopies
SaveCheckpoint = checkpoints.SaveCheckpoint
RestoreCheckpoint = checkpoints.RestoreCheckpoint
ListCheckpoints = checkpoints.ListCheckpoints
DropCheckpoint = checkpoints.DropCheckpoint
ReadProvenance = moving.ReadProvenance
SendAway = moving.SendAway
TakeIn = moving.TakeIn
SettleMove = moving.SettleMove


class ListModules(RequestBase, frozen=True, tag="ListModules"): ...


class Tokenize(RequestBase, frozen=True, tag="Tokenize"):
    text: Text
    chat: bool = False


class Detokenize(RequestBase, frozen=True, tag="Detokenize"):
    tokens: Tokens


class ReadStatistics(RequestBase, frozen=True, tag="ReadStatistics"): ...


class Shutdown(RequestBase, frozen=True, tag="Shutdown"):
    """Refused while other holders have sessions, or with `forget` while sessions belong to other notebooks, unless
    `force`. The sessions come back with the next engine of this
    model, where a journal is kept, unless `forget`."""

    force: bool = False
    forget: bool = False


class Run(SessionRequest, frozen=True, tag="Run"):
    """Run a prompt (text or token ids) until a stop or the end.

    A fresh line of tokens, unless `extend`: then the prompt (may be empty) is appended to the present line.
    A line that was run for no new token is extended by none: its next token is drawn from the logits that it ended in.
    `free` ignores breakpoints. `fast` shares passes of generated tokens with other such runs; last bits may differ.
    """

    text: Text | None = None
    tokens: Tokens | None = None
    max_new_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 20
    sampling: Sampling = Sampling()
    stop: StopStrings = ()
    ignore_eos: bool = False
    chat: bool = False
    extend: bool = False
    free: bool = False
    mode: Mode = "exact"

    def __post_init__(self) -> None:
        """Refuse sampling settings that cannot be computed: kept sessions may have them, a new run may not."""
        if isinstance(self.sampling, Sampling):
            require_computable(self.sampling)


class Resume(StopRequest, frozen=True, tag="Resume"):
    free: bool = False
    mode: Mode | None = None  # None goes on as the run began


class Step(StopRequest, frozen=True, tag="Step"):
    """By layers, by tokens (to the same site of a later pass), or by points: to the next point of the layer that the
    pass stands before or inside, at its end to the layer's output."""

    count: Count = 1
    by: Literal["layer", "token", "point"] = "layer"


class Pause(SessionRequest, frozen=True, tag="Pause"):
    """Have a run stop at its next layer boundary; have edges that are patched, an attribution graph or a reading of
    heads reply with the parts that are done."""


class Back(StopRequest, frozen=True, tag="Back"):
    count: Count = 1
    by: Literal["stop", "layer", "token"] = "stop"


class SetBreakpoint(SessionRequest, frozen=True, tag="SetBreakpoint"):
    site: Spelling
    when: ConditionText | None = None
    once: bool = False


class EnableBreakpoint(SessionRequest, frozen=True, tag="EnableBreakpoint"):
    number: int
    enabled: bool


class ClearBreakpoints(SessionRequest, frozen=True, tag="ClearBreakpoints"):
    """`sites` None clears all; otherwise spellings or numbers."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=10_000)] | None = None


class Attribute(SessionRequest, frozen=True, tag="Attribute"):
    """Direct logit attribution: what the outputs of attention and MLP of each layer that has run add to the logit of a
    token, by text or number, or of two to their difference. `heads` parts attention into its heads, `neurons` each MLP
    into the inputs of its last map. `position` is absolute, negative from the end of the pass. `ahead` finishes the
    pass on the side and adds the layers after the stop."""

    tokens: OneOrTwo
    heads: bool = False
    neurons: bool = False
    position: int = -1
    ahead: bool = False


class Evaluate(SessionRequest, frozen=True, tag="Evaluate"):
    """Evaluate an expression of the condition language at a position of the stopped pass, as a breakpoint there would
    read it. `site` None is the stopped one; `position` is absolute, negative from the end of the pass."""

    expression: ConditionText
    site: Spelling | None = None
    position: int = -1


class ReadStop(SessionRequest, frozen=True, tag="ReadStop"):
    """The present stop once more, as it was reported."""


class ReadLogits(SessionRequest, frozen=True, tag="ReadLogits"):
    """fp32 logits of the last position of the last finished pass."""


class ReadHistory(SessionRequest, frozen=True, tag="ReadHistory"): ...


class ReadTree(RequestBase, frozen=True, tag="ReadTree"):
    """The stops of all sessions, and which forks they share them with."""


class AcceptRecomputed(SessionRequest, frozen=True, tag="AcceptRecomputed"):
    """The user has seen that the session was recomputed after a recovery; from now on it counts as exact again."""


class Note(SessionRequest, frozen=True, tag="Note"):
    """Report the activity of its notebook, which says how soon the session will be wanted: a cell of its kernel runs or
    has ended, it has the focus or lost it, a cell that uses it is about to run, its magics act on this session from now
    on, its kernel is gone."""

    activity: Activity


Request = (
    Hello
    | Goodbye
    | Ping
    | Listen
    | Unlisten
    | ListModules
    | AddModule
    | ListAddedModules
    | RemoveModule
    | AddAdapter
    | ListAdapters
    | RemoveAdapter
    | SetAdapter
    | ReadWeight
    | Tokenize
    | Detokenize
    | ReadStatistics
    | ListSessions
    | ReadPeople
    | Shutdown
    | Open
    | Describe
    | SetAttention
    | Share
    | Detach
    | Close
    | Fork
    | Run
    | Resume
    | ResumeWith
    | Step
    | Pause
    | Back
    | SetBreakpoint
    | EnableBreakpoint
    | ClearBreakpoints
    | ApplyEdit
    | RevertEdits
    | EnableEdit
    | MeasureEffect
    | Steer
    | Unsteer
    | EnableRule
    | Inspect
    | ReadPooled
    | ReadFigures
    | Compare
    | ReadPass
    | Lens
    | Attribute
    | Sweep
    | AttributeEdges
    | MakeGraph
    | RunCircuits
    | Collect
    | checking.CheckRequest
    | Score
    | ReadHeads
    | Evaluate
    | Watch
    | Unwatch
    | ReadWatch
    | ReadStop
    | ReadLogits
    | ReadMetrics
    | ReadHistory
    | ReadTree
    | SwapOut
    | SwapIn
    | Rest
    | Sleep
    | Wake
    | ReadCopies
    | SaveCheckpoint
    | RestoreCheckpoint
    | ListCheckpoints
    | DropCheckpoint
    | AcceptRecomputed
    | ReadProvenance
    | SendAway
    | TakeIn
    | SettleMove
    | Note
    | pieces.PieceRequest
)
