"""The requests to an engine, in the imperative. Each gets exactly one reply: one that its class line has, or Failed."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire.greeting import Goodbye, Hello, Listen, Ping, Shutdown, Unlisten
from djinn_jupyter.wire.looks import Evaluate, Inspect, Lens, MeasureEffect, ReadWatch, Unwatch, Watch
from djinn_jupyter.wire.modules import (
    AddAdapter,
    AddModule,
    ListAdapters,
    ListAddedModules,
    RemoveAdapter,
    RemoveModule,
    SetAdapter,
)
from djinn_jupyter.wire.people import ReadPeople
from djinn_jupyter.wire.pieces import Assemble, DropPieces, PutPiece, ReadPiece
from djinn_jupyter.wire.readings import Compare, ReadFigures, ReadHistory, ReadPooled, ReadTree
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, RequestMeta, SessionRequest, StopRequest
from djinn_jupyter.wire.running import (
    ApplyEdit,
    Back,
    ClearBreakpoints,
    EnableBreakpoint,
    EnableEdit,
    EnableRule,
    Pause,
    ReadLogits,
    ReadMetrics,
    ReadPass,
    ReadStop,
    Resume,
    ResumeWith,
    RevertEdits,
    Run,
    SetBreakpoint,
    Steer,
    Step,
    Unsteer,
)
from djinn_jupyter.wire.sessions import (
    AcceptRecomputed,
    Close,
    Describe,
    Detach,
    DropCheckpoint,
    Fork,
    ListCheckpoints,
    ListSessions,
    Open,
    ReadProvenance,
    ReadStatistics,
    RestoreCheckpoint,
    SaveCheckpoint,
    SendAway,
    SetAttention,
    SettleMove,
    Share,
    TakeIn,
)
from djinn_jupyter.wire.weights import (
    Detokenize,
    ListModules,
    Note,
    ReadCopies,
    ReadWeight,
    Rest,
    Sleep,
    SwapIn,
    SwapOut,
    Tokenize,
    Wake,
)

Request = RequestBase[Any]
