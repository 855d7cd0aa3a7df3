"""The requests to an engine, in the imperative. Each gets exactly one reply: one that its class line has, or Failed."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire.adapters import AddAdapter, ListAdapters, RemoveAdapter, SetAdapter
from djinn_jupyter.wire.added_modules import AddModule, ListAddedModules, RemoveModule
from djinn_jupyter.wire.breakpoints import ClearBreakpoints, EnableBreakpoint, SetBreakpoint
from djinn_jupyter.wire.checkpoints import DropCheckpoint, ListCheckpoints, RestoreCheckpoint, SaveCheckpoint
from djinn_jupyter.wire.figures import Compare, ReadFigures
from djinn_jupyter.wire.greeting import Goodbye, Hello, Ping, Shutdown
from djinn_jupyter.wire.history import ReadHistory, ReadTree
from djinn_jupyter.wire.interventions import ApplyEdit, EnableEdit, EnableRule, RevertEdits, Steer, Unsteer
from djinn_jupyter.wire.listening import Listen, Unlisten
from djinn_jupyter.wire.listing import ListSessions, ReadStatistics
from djinn_jupyter.wire.looks import Evaluate, Inspect, Lens, MeasureEffect
from djinn_jupyter.wire.model import Detokenize, ListModules, Tokenize
from djinn_jupyter.wire.moving import ReadProvenance, SendAway, SettleMove, TakeIn
from djinn_jupyter.wire.opening import AcceptRecomputed, Close, Describe, Detach, Fork, Open, SetAttention
from djinn_jupyter.wire.passes import ReadPass, ResumeWith
from djinn_jupyter.wire.people import ReadPeople
from djinn_jupyter.wire.pieces import Assemble, DropPieces, PutPiece, ReadPiece
from djinn_jupyter.wire.pooling import ReadPooled
from djinn_jupyter.wire.request_base import OwnerRequest, RequestBase, RequestMeta, SessionRequest, StopRequest
from djinn_jupyter.wire.running import Back, Pause, ReadLogits, ReadMetrics, ReadStop, Resume, Run, Step
from djinn_jupyter.wire.sharing import Share
from djinn_jupyter.wire.swapping import Note, ReadCopies, Rest, Sleep, SwapIn, SwapOut, Wake
from djinn_jupyter.wire.watches import ReadWatch, Unwatch, Watch
from djinn_jupyter.wire.weights import ReadWeight

Request = RequestBase[Any]
