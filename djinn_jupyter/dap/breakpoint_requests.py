"""The client's breakpoints: at lines of the model, and by the names of sites."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.dap import arguments
from djinn_jupyter.dap.breakpoints import BreakpointKind, WantedBreakpoint, refused
from djinn_jupyter.dap.debug_thread import DebugThread
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.handles import Body, handles
from djinn_jupyter.dap.protocol import Client, Request
from djinn_jupyter.errors import DjinnError


class BreakpointCommands:
    def __init__(self, client: Client, debuggee: Debuggee) -> None:
        self._client, self._debuggee = client, debuggee

    @handles("setBreakpoints", arguments.SetBreakpoints)
    def set_breakpoints(self, given: arguments.SetBreakpoints, request: Request) -> Body:
        tree = self._debuggee.tree
        if not tree.means(given.source.name, given.source.path, given.source.source_reference):
            message = f"Breakpoints stand in the lines of {tree.name}, the model; this is another source."
            return {"breakpoints": [refused(message) for _ in given.breakpoints]}
        return self._replace("source", [self._at_line(point) for point in given.breakpoints])

    @handles("setFunctionBreakpoints", arguments.SetFunctionBreakpoints)
    def set_function_breakpoints(self, given: arguments.SetFunctionBreakpoints, request: Request) -> Body:
        wanted = [
            WantedBreakpoint(site=point.name.strip() or "?", condition=point.condition, hits=point.hit_condition)
            for point in given.breakpoints
        ]
        return self._replace("function", wanted)

    @handles("setExceptionBreakpoints")
    def set_exception_breakpoints(self, given: arguments.Nothing, request: Request) -> Body:
        """Answer with an empty list: there are no exception breakpoints, but some editors send the request."""
        return {"breakpoints": []}

    def _at_line(self, point: arguments.SourceBreakpoint) -> WantedBreakpoint:
        try:
            _, site = self._debuggee.tree.site_at(self._client.from_line(point.line))
        except DjinnError as error:
            return WantedBreakpoint(site=None, condition=None, hits=None, failure=error)
        return WantedBreakpoint(site=site, condition=point.condition, hits=point.hit_condition)

    def _replace(self, kind: BreakpointKind, wanted: list[WantedBreakpoint]) -> Body:
        thread = self._debuggee.aimed_at
        answers = thread.breakpoint_record.replace(thread.session, self._debuggee.tree, kind, wanted)
        return {"breakpoints": [self._spelled(thread, answer) for answer in answers]}

    def _spelled(self, thread: DebugThread, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the line as the client counts it, and with the name of the session that it stops where
        the client shows no threads."""
        if "line" in answer:
            answer = {**answer, "line": self._client.to_line(answer["line"])}
        if self._debuggee.names_sessions and answer["verified"]:
            answer = {**answer, "message": f"Stops session {thread.session.label}."}
        return answer
