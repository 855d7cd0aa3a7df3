"""Requests that read a stop: threads, stack, scopes, variables, expressions. Each reply names the stop that it was read
from; frames and variables of another stop are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from djinn_jupyter.dap import arguments
from djinn_jupyter.dap.containers import Container, Fixed, References, page, sizes
from djinn_jupyter.dap.debug_thread import DebugThread
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.frames import Frames
from djinn_jupyter.dap.handles import Body, handles
from djinn_jupyter.dap.protocol import Client, Request
from djinn_jupyter.dap.repl import VERBS, Repl, is_said
from djinn_jupyter.dap.reports import Reports, identified
from djinn_jupyter.dap.scopes import scopes_of
from djinn_jupyter.dap.tree import Enclosing
from djinn_jupyter.dap.values import Activation
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire.names import told_apart
from djinn_jupyter.wire.sites import MODEL_POINTS

_SITE = re.compile(r"^[A-Za-z_][\w.]*(\[[-\d:, ]+\])?$")
CHANGED = ("value", "type", "variablesReference", "indexedVariables")


class Inspection:
    def __init__(
        self, client: Client, debuggee: Debuggee, references: References, frames: Frames, reports: Reports, repl: Repl
    ) -> None:
        self._client, self._debuggee = client, debuggee
        self._references, self._frames = references, frames
        self._reports, self._repl = reports, repl

    @handles("threads")
    def threads(self, given: arguments.Nothing, request: Request) -> Body:
        """Return the followed sessions as threads, with names that tell them apart, and what is swept, collected or
        read in them."""
        threads = self._debuggee.threads.values()
        shown = told_apart(one.name for one in threads)
        shown |= {name: f"{shown[name]} ({progress})" for name, progress in self._debuggee.at_work() if name in shown}
        return {"threads": [{"id": one.number, "name": shown[one.name]} for one in threads]}

    # --- the stack ---------------------------------------------------------------------------------------------------

    @handles("stackTrace", arguments.StackTrace)
    def stack_trace(self, given: arguments.StackTrace, request: Request) -> Body:
        """Return as frames the stopped site, its enclosing modules from the innermost outwards, and the model."""
        thread, tree = self._debuggee.thread(given.thread_id), self._debuggee.tree
        stop = thread.stopped.stop
        whose = f" of {thread.session.label}" if self._debuggee.names_sessions else ""
        lines = [(f"{stop.site}, step {stop.step}{whose}", tree.line_of(stop.site))]
        lines += [(frame.name, frame.line) for frame in tree.enclosing(stop.site)]
        frames = [self._frame(thread, index, *line) for index, line in enumerate(lines)]
        shown = frames[given.start_frame :][: given.levels or None]
        return self._of(thread, {"stackFrames": shown, "totalFrames": len(frames)})

    def _frame(self, thread: DebugThread, index: int, name: str, line: int) -> dict[str, Any]:
        return {
            "id": self._frames.number(thread.number, thread.stopped.identity, index),
            "name": name,
            "source": self._debuggee.tree.source,
            "line": self._client.to_line(line),
            "column": 1,
        }

    def framed(self, number: int) -> tuple[DebugThread, Enclosing | None]:
        """Return the thread of a frame and the enclosing module that it shows; None for the stop itself. UsageError for
        a frame of a stop that is past."""
        found, stop, index = self._frames.find(number)
        thread = self._debuggee.thread(found)
        look = thread.stopped
        if look.identity.number != stop:
            raise UsageError(f"The frame {number} is of a stop that is past; ask for the stack of the present one.")
        return thread, None if index == 0 else self._debuggee.tree.enclosing(look.stop.site)[index - 1]

    # --- values ------------------------------------------------------------------------------------------------------

    @handles("scopes", arguments.OfFrame)
    def scopes(self, given: arguments.OfFrame, request: Request) -> Body:
        thread, frame = self.framed(given.frame_id)
        found = [
            {
                "name": name,
                "variablesReference": self._keep(thread, content),
                "expensive": expensive,
                **sizes(content),
            }
            for name, content, expensive in scopes_of(thread.stopped, frame)
        ]
        return self._of(thread, {"scopes": found})

    @handles("variables", arguments.Variables)
    def variables(self, given: arguments.Variables, request: Request) -> Body:
        thread, container = self._found(given.variables_reference)
        paged = self._client.capabilities.supports_variable_paging
        found = page(container, given.filter, given.start, given.count, paged=paged)
        edition = thread.stopped.identity
        return self._of(thread, {"variables": [self._references.spell(thread.number, edition, one) for one in found]})

    @handles("setVariable", arguments.SetVariable)
    def set_variable(self, given: arguments.SetVariable, request: Request) -> Body:
        """Edit the stopped value, or a part of it."""
        thread, container = self._found(given.variables_reference)
        changed = container.change(given.name, given.value)
        self._reports.edited(thread)
        spelled = self._references.spell(thread.number, thread.stopped.identity, changed)
        return self._of(thread, {name: spelled[name] for name in CHANGED if name in spelled})

    @handles("evaluate", arguments.Evaluate)
    def evaluate(self, given: arguments.Evaluate, request: Request) -> Body | None:
        """Evaluate a site to its value, or an expression of the condition language; in the console also run verbs."""
        thread = self._debuggee.aimed_at if given.frame_id is None else self.framed(given.frame_id)[0]
        text = given.expression.strip()
        if given.context == "repl" and is_said(text):
            return self._repl.speak(thread, request, text)
        look = thread.stopped
        if self._is_site(text):
            activation = Activation(look, text)
            result = {"result": activation.summary(), "variablesReference": self._keep(thread, activation)}
            return self._of(thread, result)
        value = look.evaluate(text)
        return self._of(thread, {"result": repr(value), "type": type(value).__name__, "variablesReference": 0})

    @handles("completions", arguments.Completions)
    def completions(self, given: arguments.Completions, request: Request) -> Body:
        """Complete verbs at the beginning of a console line, and sites anywhere."""
        lines = given.text.split("\n")
        number = 1 if given.line is None else self._client.from_line(given.line)
        if not 1 <= number <= len(lines):
            raise UsageError(f"completions: the text has no line {given.line}.")
        line = lines[number - 1]
        before = line[: self._client.from_line(given.column) - 1]  # columns count as lines do
        word = before.split(" ")[-1]
        begun = [] if " " in before.lstrip() else [verb for verb in VERBS if verb.startswith(word)]
        found = [*begun, *(site for site in self._debuggee.tree.sites() if site.startswith(word))] if word else begun
        start, length = len(before) - len(word), len(word)
        return {"targets": [{"label": text, "start": start, "length": length} for text in found[:400]]}

    def _is_site(self, text: str) -> bool:
        """Return True if the text is spelled as a site; a bare word counts only if it is a point or module of the
        model."""
        if not _SITE.match(text):
            return False
        return "." in text or text.partition("[")[0] in MODEL_POINTS or text in self._debuggee.tree.modules

    def _found(self, reference: int) -> tuple[DebugThread, Container]:
        """Return the thread and container of a reference. IllegalMove where it holds values of an earlier edition."""
        owner, read_from, container = self._references.find(reference)
        thread = self._debuggee.thread(owner)
        if isinstance(container, Fixed) and read_from != thread.stopped.identity:
            raise IllegalMove(
                f"The variables {reference} were read before the stop was edited; ask for its scopes again."
            )
        return thread, container

    def _keep(self, thread: DebugThread, container: Container) -> int:
        return self._references.keep(thread.number, thread.stopped.identity, container)

    def _of(self, thread: DebugThread, body: Mapping[str, Any]) -> Body:
        """Name the stop that a body was read from."""
        return {**body, **identified(thread.stopped.identity)}
