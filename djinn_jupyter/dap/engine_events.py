"""The engine's events as the client sees them: the ends of its own moves, and the moves of other clients. A
notebook's run appears in the editor like the editor's own."""

from __future__ import annotations

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.execution import Execution
from djinn_jupyter.dap.protocol import Client
from djinn_jupyter.dap.reports import Reports
from djinn_jupyter.wire.replies import (
    Event,
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
                self._execution.end(thread, move)
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
