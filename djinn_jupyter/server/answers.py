"""The requests that a browser may send to an engine, each with its reply; the sidebar's types follow this map too."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.server.messages import Accepted
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask

MOVES: Final = (ask.Run, ask.Resume, ask.Step, ask.Back)
"""Answered when the engine has accepted them; their outcome comes later."""

OPENING: Final = (ask.Open, ask.Fork, ask.RestoreCheckpoint)
"""These make the client the session's holder, which a server must not be."""

ANSWERS: Final[dict[type[ask.RequestBase], type[replies.ReplyBase] | type[Accepted]]] = {
    ask.Ping: replies.Pong,
    ask.ListModules: replies.Modules,
    ask.ListAddedModules: replies.AddedModules,
    ask.RemoveModule: replies.Cleared,
    ask.ListAdapters: replies.Adapters,
    ask.RemoveAdapter: replies.Cleared,
    ask.SetAdapter: replies.Described,
    ask.Tokenize: replies.Tokenized,
    ask.Detokenize: replies.Tokenized,
    ask.ReadStatistics: replies.Statistics,
    ask.ListSessions: replies.Sessions,
    ask.Shutdown: replies.ShuttingDown,
    ask.Open: replies.Opened,
    ask.Describe: replies.Described,
    ask.Close: replies.Closed,
    ask.Fork: replies.Opened,
    ask.Run: Accepted,
    ask.Resume: Accepted,
    ask.Step: Accepted,
    ask.Pause: replies.Pausing,
    ask.Back: Accepted,
    ask.SetBreakpoint: replies.BreakpointSet,
    ask.EnableBreakpoint: replies.BreakpointSet,
    ask.ClearBreakpoints: replies.Cleared,
    ask.ApplyEdit: replies.Edited,
    ask.RevertEdits: replies.Paused,
    ask.EnableEdit: replies.Paused,
    ask.MeasureEffect: replies.Effect,
    ask.ReadPass: replies.PassRead,
    ask.Steer: replies.Steered,
    ask.Unsteer: replies.Cleared,
    ask.EnableRule: replies.Steered,
    ask.Inspect: replies.Inspected,
    ask.ReadPooled: replies.PooledRead,
    ask.Lens: replies.LensRead,
    ask.Attribute: replies.Attributed,
    ask.Watch: replies.Watching,
    ask.Unwatch: replies.Cleared,
    ask.ReadWatch: replies.WatchRead,
    ask.ReadStop: replies.Paused,
    ask.ReadLogits: replies.Logits,
    ask.ReadHistory: replies.History,
    ask.ReadTree: replies.Tree,
    ask.SwapOut: replies.Swapped,
    ask.SwapIn: replies.Swapped,
    ask.Rest: replies.Described,
    ask.Sleep: replies.WeightsMoved,
    ask.Wake: replies.WeightsMoved,
    ask.ReadCopies: replies.Copies,
    ask.SaveCheckpoint: replies.CheckpointSaved,
    ask.RestoreCheckpoint: replies.Opened,
    ask.ListCheckpoints: replies.Checkpoints,
    ask.DropCheckpoint: replies.Cleared,
    ask.Evaluate: replies.Evaluated,
    ask.AcceptRecomputed: replies.Described,
}
