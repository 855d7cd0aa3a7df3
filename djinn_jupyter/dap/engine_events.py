"""The engine's events as the client sees them: the beginnings of its own moves, whose ends are their replies, and the
moves of other clients. A notebook's run appears in the editor like the editor's own."""

from __future__ import annotations

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.dap.debug_thread import DebugThread, state_of
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.execution import Execution
from djinn_jupyter.dap.protocol import Client
from djinn_jupyter.dap.reports import Reports
from djinn_jupyter.wire.nouns import SessionDescription
from djinn_jupyter.wire.replies import (
    Event,
    EventsMissed,
    RuleRefused,
    SessionClosed,
    SessionEdited,
    SessionFailed,
    SessionFinished,
    SessionOpened,
    SessionPaused,
    SessionRunning,
    TokenSampled,
)


class EngineEvents:
    def __init__(self, client: Client, debuggee: Debuggee, execution: Execution, reports: Reports) -> None:
        self._client, self._debuggee, self._execution, self._reports = client, debuggee, execution, reports

    def hear(self, event: Event) -> None:
        if isinstance(event, EventsMissed):
            self._look_again()
            return
        thread = self._debuggee.named(event.session)
        if thread is None:
            if isinstance(event, SessionOpened) and self._debuggee.follows_all:
                self._reports.started(RemoteSession(self._debuggee.engine.channel, event.session))
            return
        move = thread.move
        match event:
            case TokenSampled() if event.text:
                self._client.write(event.text, "stdout")
            case SessionRunning() if move is not None:
                self._execution.accept(thread, move)
            case SessionRunning():
                self._reports.continued(thread)
            case SessionPaused() | SessionFinished() | SessionFailed() if move is not None:
                pass  # its reply comes next
            case SessionPaused():
                self._reports.show_stop(thread)
            case SessionFinished():
                self._reports.over(thread, f"\n{thread.session.label} finished ({event.reason}).\n")
            case SessionFailed():
                self._reports.over(thread, f"{event.message}\n", "stderr")
            case RuleRefused(number=number, message=message):
                self._client.write(f"Rule {number} could not be applied: {message} The run goes on.\n", "stderr")
            case SessionEdited(stop=stop):
                self._reports.edited_elsewhere(thread, stop)
            case SessionClosed():
                self._reports.closed(thread)

    def _look_again(self) -> None:
        """Show each session as it is now. A move in progress here is left to its reply."""
        there = {one.name: one for one in self._debuggee.engine.sessions()}
        for thread in tuple(self._debuggee.threads.values()):
            described = there.pop(thread.name, None)
            if described is None:
                self._reports.closed(thread)
            elif thread.move is None:
                self._show(thread, described)
        if self._debuggee.follows_all:
            for name, described in there.items():
                self._show(self._reports.started(RemoteSession(self._debuggee.engine.channel, name)), described)

    def _show(self, thread: DebugThread, described: SessionDescription) -> None:
        """Report what a session does now, if the client was shown something else."""
        state = state_of(described)
        if state == thread.state and described.stop == thread.seen:
            return
        match state:
            case "running":
                self._reports.continued(thread)
            case "paused":
                self._reports.show_stop(thread)
            case "idle":
                self._reports.over(thread, f"\nThe run of {thread.session.label} is over.\n")
