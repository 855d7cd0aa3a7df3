"""The model as the one source: its text, and the lines at which a breakpoint can stand."""

from __future__ import annotations

from djinn_jupyter.dap import arguments
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.handles import Body, handles
from djinn_jupyter.dap.protocol import Client, Request
from djinn_jupyter.dap.tree import REFERENCE
from djinn_jupyter.errors import UsageError


class Sources:
    def __init__(self, client: Client, debuggee: Debuggee) -> None:
        self._client, self._debuggee = client, debuggee

    @handles("source", arguments.ReadSource)
    def source(self, given: arguments.ReadSource, request: Request) -> Body:
        wanted, tree = given.source or arguments.Source(), self._debuggee.tree
        if not tree.means(wanted.name, wanted.path, given.source_reference or wanted.source_reference):
            raise UsageError(f"The only source is {tree.name}, the model (reference {REFERENCE}).")
        return {"content": tree.text, "mimeType": "text/plain"}

    @handles("loadedSources")
    def loaded_sources(self, given: arguments.Nothing, request: Request) -> Body:
        return {"sources": [self._debuggee.tree.source]}

    @handles("breakpointLocations", arguments.BreakpointLocations)
    def breakpoint_locations(self, given: arguments.BreakpointLocations, request: Request) -> Body:
        tree = self._debuggee.tree
        if not tree.means(given.source.name, given.source.path, given.source.source_reference):
            return {"breakpoints": []}
        first, last = (self._client.from_line(line) for line in (given.line, given.end_line or given.line))
        lines = range(max(first, 1), min(last, len(tree.rows)) + 1)
        sites = [line for line in lines if tree.rows[line - 1].site is not None]
        return {"breakpoints": [{"line": self._client.to_line(line)} for line in sites]}
