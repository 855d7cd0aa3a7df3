"""What the engine does for each request: a function a verb, grouped by what they touch, and the table that finds them.

A verb returns its reply, or a generator of steps where forward passes have to be run first. It checks everything before
it changes anything: a verb that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.scheduler import Steps, Underway
from djinn_jupyter.engine.verbs import (
    attributing,
    branches,
    changing,
    keeping,
    looking,
    moving,
    residing,
    sessions,
    switching,
    weights,
)
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Reply

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine

Verb = Callable[["Engine", Any, Holder], Reply | Steps | Underway]

VERBS: dict[type[ask.RequestBase], Verb] = {
    ask.Open: sessions.open_,
    ask.Describe: sessions.describe,
    ask.Detach: sessions.detach,
    ask.Close: sessions.close,
    ask.Fork: sessions.fork,
    ask.Run: moving.run,
    ask.Resume: moving.resume,
    ask.Step: moving.step,
    ask.Pause: moving.pause,
    ask.Back: moving.back,
    ask.SetBreakpoint: changing.set_breakpoint,
    ask.EnableBreakpoint: changing.enable_breakpoint,
    ask.ClearBreakpoints: changing.clear_breakpoints,
    ask.ApplyEdit: changing.apply_edit,
    ask.RevertEdits: changing.revert_edits,
    ask.EnableEdit: switching.enable_edit,
    ask.Steer: changing.steer,
    ask.Unsteer: changing.unsteer,
    ask.EnableRule: switching.enable_rule,
    ask.Watch: changing.watch,
    ask.Unwatch: changing.unwatch,
    ask.MeasureEffect: looking.measure_effect,
    ask.Inspect: looking.inspect,
    ask.Lens: looking.lens,
    ask.Attribute: attributing.attribute,
    ask.Evaluate: looking.evaluate,
    ask.ReadWatch: looking.read_watch,
    ask.ReadStop: looking.read_stop,
    ask.ReadLogits: looking.read_logits,
    ask.ReadHistory: looking.read_history,
    ask.ReadTree: branches.read_tree,
    ask.Nap: weights.nap,
    ask.Wake: weights.wake,
    ask.ReadCopies: weights.read_copies,
    ask.SaveCheckpoint: keeping.save_checkpoint,
    ask.RestoreCheckpoint: keeping.restore_checkpoint,
    ask.AcceptRecomputed: keeping.accept_recomputed,
    ask.SwapOut: residing.swap_out,
    ask.SwapIn: residing.swap_in,
    ask.Note: residing.note,
}

OPENS: frozenset[type[ask.RequestBase]] = frozenset({ask.Open, ask.RestoreCheckpoint})
"""Requests whose session need not be there yet; of all others it has to be, before their verb is called."""

NEEDS_WEIGHTS: frozenset[type[ask.RequestBase]] = frozenset({ask.Run, ask.Resume, ask.Step, ask.Back})
"""Requests whose session begins to run; a look wakes the weights only where it comes to a forward pass."""

CHANGES_NOTHING: frozenset[type[ask.RequestBase]] = frozenset(
    {
        ask.Describe,
        ask.Detach,
        ask.Pause,
        ask.Inspect,
        ask.Lens,
        ask.Attribute,
        ask.Evaluate,
        ask.MeasureEffect,
        ask.ReadWatch,
        ask.ReadStop,
        ask.ReadLogits,
        ask.ReadHistory,
        ask.ReadTree,
        ask.SaveCheckpoint,
        ask.SwapOut,
        ask.SwapIn,
        ask.Note,
    }
)
"""Requests after which a session is what it was, as far as the journal keeps it."""

WHILE_RUNNING: frozenset[type[ask.RequestBase]] = frozenset(
    {
        ask.Open,
        ask.Describe,
        ask.Detach,
        ask.Close,
        ask.Pause,
        ask.SetBreakpoint,
        ask.EnableBreakpoint,
        ask.ClearBreakpoints,
        ask.Steer,
        ask.Unsteer,
        ask.EnableRule,
        ask.Watch,
        ask.Unwatch,
        ask.ReadWatch,
        ask.ReadHistory,
        ask.AcceptRecomputed,
        ask.Note,
    }
)
"""Requests that a session answers while a run of its own is under way."""

WHILE_AWAY: frozenset[type[ask.RequestBase]] = WHILE_RUNNING | {ask.SwapOut, ask.SwapIn, ask.RestoreCheckpoint}
"""Requests that read and write nothing of a session that can be away from the device."""

AT_ONCE: frozenset[type[ask.RequestBase]] = frozenset({ask.Open, ask.Describe, ask.Detach, ask.Close, ask.Note})
"""Requests that do not wait behind others of their session."""
WITHOUT_ROWS: frozenset[type[ask.RequestBase]] = WHILE_RUNNING | {
    ask.ReadStop,
    ask.ReadLogits,
    ask.RevertEdits,
    ask.EnableEdit,
    ask.RestoreCheckpoint,
}
"""Requests that read no keys, values and recurrent states of the session."""
