"""Reports to the client on its threads: started, stopped, continued, edited, over. References into a stop are forgotten
when the session leaves that stop.

A `stopped` event, and every reply that was read from a stop, names it: session, number, edition.
"""

from __future__ import annotations

from typing import Any, Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.editors.dap.debuggee import Debuggee, DebugThread
from djinn_jupyter.editors.dap.protocol import Client
from djinn_jupyter.editors.dap.tree import Frames
from djinn_jupyter.editors.dap.values import References
from djinn_jupyter.errors import EngineUnavailable, IllegalMove, UnknownSession
from djinn_jupyter.wire.nouns import StopIdentity

REASONS: Final = {
    "breakpoint": "breakpoint",
    "step": "step",
    "interrupt": "pause",
    "back": "step",
    "fork": "entry",
    "quota": "pause",
}
GONE_ON: Final = (IllegalMove, UnknownSession, EngineUnavailable)  # the stop of a reading is past, closed or ended
READ_FROM: Final = "djinnStop"  # not in the protocol: clients that do not know the field ignore it


def identified(stop: StopIdentity) -> dict[str, Any]:
    """Return the field by which a message names the stop that it was read from."""
    return {READ_FROM: {"session": stop.session, "number": stop.number, "edition": stop.edition}}


class Reports:
    def __init__(self, client: Client, debuggee: Debuggee, references: References, frames: Frames) -> None:
        self._client, self._debuggee = client, debuggee
        self._references, self._frames = references, frames

    def started(self, session: RemoteSession) -> DebugThread:
        """Add a session as a thread."""
        thread = self._debuggee.follow(session)
        if thread is not self._debuggee.first:
            self._client.send_event("thread", {"reason": "started", "threadId": thread.number})
        return thread

    def show_stop(self, thread: DebugThread) -> None:
        """Show a stop that another client's move reached, or that existed before this conversation."""
        try:
            stop = thread.session.stop
        except GONE_ON:
            return  # an event reports it
        self.stopped(thread, stop)

    def stopped(self, thread: DebugThread, stop: Paused) -> None:
        self._forget(thread)
        thread.arrived(stop)
        self._client.send_event("stopped", self._why(thread, stop))

    def left(self, thread: DebugThread) -> None:
        """Drop the references into the stop that a session has left."""
        thread.left()
        self._forget(thread)

    def continued(self, thread: DebugThread) -> None:
        self.left(thread)
        self._client.send_event("continued", {"threadId": thread.number, "allThreadsContinued": False})

    def edited_elsewhere(self, thread: DebugThread, stop: StopIdentity) -> None:
        """Refresh the shown stop after an edit by another client, which gives the stop another identity."""
        if thread.look is not None and thread.move is None and stop != thread.look.identity:
            try:
                self.edited(thread)
            except GONE_ON:
                return  # an event reports it

    def edited(self, thread: DebugThread) -> None:
        """Read the stop again after an edit, and report outdated variables to a client that supports it."""
        if thread.look is not None:
            thread.look.refresh()
        if self._client.capabilities.supports_invalidated_event:
            self._client.send_event("invalidated", {"areas": ["variables"], "threadId": thread.number})

    def finished(self, thread: DebugThread, outcome: Finished) -> None:
        """Report the end of a run that was moved here."""
        detail = f", {outcome.detail}" if outcome.detail else ""
        self.over(thread, f"\n{thread.session.label} finished ({outcome.reason}{detail}).\n")
        if self._ends_with(thread):
            self._client.send_event("exited", {"exitCode": 0})
            self._client.terminated()

    def failed(self, thread: DebugThread, sentence: str) -> None:
        """Report the failure of a run that was moved here."""
        self.over(thread, f"{sentence}\n", "stderr")
        if self._ends_with(thread):
            self._client.terminated()

    def over(self, thread: DebugThread, text: str, category: str = "console") -> None:
        """Report the end of a run, of this client or another."""
        thread.state = "idle"
        self._client.write(text, category)

    def closed(self, thread: DebugThread) -> None:
        self._forget(thread)
        if self._debuggee.closing_ends(thread):
            thread.state = "idle"
            self._client.terminated()
            return
        del self._debuggee.threads[thread.number]
        self._client.send_event("thread", {"reason": "exited", "threadId": thread.number})

    def _ends_with(self, thread: DebugThread) -> bool:
        return thread is self._debuggee.first and self._debuggee.launched

    def _forget(self, thread: DebugThread) -> None:
        self._references.forget(thread.number)
        self._frames.forget(thread.number)

    def _why(self, thread: DebugThread, stop: Paused) -> dict[str, Any]:
        met = stop.reply.breakpoint
        reason = REASONS[stop.reason]
        if reason == "breakpoint" and thread.breakpoint_record.kind_of(stop) == "function":
            reason = "function breakpoint"
        said: dict[str, Any] = {
            "reason": reason,
            "description": f"Paused at {labelled(stop.site)}",
            "text": repr(stop),
            "threadId": thread.number,
            "allThreadsStopped": len(self._debuggee.threads) == 1,
            **identified(stop.reply.stop),
        }
        if reason.endswith("breakpoint") and met is not None and thread is self._debuggee.first:
            said["hitBreakpointIds"] = [met.number]
        return said
