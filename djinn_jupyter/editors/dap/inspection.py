"""The scopes of a stack frame: activation, logit lens, tokens, session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from djinn_jupyter.api.looks import spell_top
from djinn_jupyter.api.names import labelled
from djinn_jupyter.editors.dap import protocol
from djinn_jupyter.editors.dap.breakpoints import number
from djinn_jupyter.editors.dap.debuggee import Debuggee, DebugThread
from djinn_jupyter.editors.dap.protocol import Body, Client, Request, handles
from djinn_jupyter.editors.dap.repl import VERBS, Repl, is_said
from djinn_jupyter.editors.dap.reports import Reports, identified
from djinn_jupyter.editors.dap.tree import Enclosing, Frames
from djinn_jupyter.editors.dap.values import (
    Activation,
    Container,
    Fixed,
    Listed,
    References,
    StoppedValues,
    Variable,
    page,
    sizes,
)
from djinn_jupyter.errors import IllegalMove, UnknownSite, UsageError
from djinn_jupyter.wire import nouns, sites, texts

TOP = 5
CHEAP_ROWS = 64
Scope = tuple[str, Container, bool]


def scopes_of(look: StoppedValues, frame: Enclosing | None) -> tuple[Scope, ...]:
    """Return (name, content, True if expensive) of each scope of the stopped site (`frame` None) or a module."""
    rest: tuple[Scope, ...] = (("Tokens", tokens(look), False), ("Session", SessionScope(look), False))
    if frame is None:
        long = len(look.stop.positions) > CHEAP_ROWS
        return (("Activation", Activation(look), False), ("Logit lens", lens(look), long), *rest)
    if frame.entry is None:
        return rest
    return (("Input", Activation(look, frame.entry), True), *rest)


def lens(look: StoppedValues) -> Container:
    """Return the most probable next tokens at each position of the pass, by the model's own epilogue."""
    positions = look.stop.positions

    def rows(start: int, count: int) -> Sequence[Variable]:
        chosen = positions[start : start + count]
        found, site = _lens_rows(look, chosen)
        return [_lens_row(row, site) for row in found]

    return Listed(len(positions), rows)


def _lens_rows(look: StoppedValues, positions: tuple[int, ...]) -> tuple[tuple[nouns.LensRow, ...], str]:
    """Read the lens at the stop; if its value has not the width of the residual stream, at its layer's `resid_pre`.
    Return the rows and their site."""
    if not positions:
        return (), look.stop.site
    try:
        read = look.lens(TOP, positions=positions)
    except UnknownSite:
        layer = sites.parse_site(look.stop.site).layer
        site = f"resid_pre.{look.stop.layer if layer is None else layer}"
        read = look.lens(TOP, site=site, positions=positions)
    return read.rows, read.site


def _lens_row(row: nouns.LensRow, site: str) -> Variable:
    tops = [Variable(name=repr(top.text), value=number(top.probability)) for top in row.top]
    return Variable(
        name=f"[{row.position}]", value=f"{row.text!r} then {spell_top(row.top[:3])}", type=site, inside=Fixed(*tops)
    )


def tokens(look: StoppedValues) -> Container:
    stop = look.stop

    def rows(start: int, count: int) -> Sequence[Variable]:
        return [
            Variable(
                name=f"[{place}]",
                value=repr(stop.texts[place]),
                type=f"token {stop.tokens[place]}, {'prompt' if place < stop.prompt_tokens else 'new'}"
                f"{', in this pass' if place in stop.positions else ''}",
            )
            for place in range(start, start + count)
        ]

    return Listed(len(stop.tokens), rows)


class SessionScope(Container):
    """The session's stop, text, breakpoints, rules, earlier stops and residency."""

    def __init__(self, look: StoppedValues) -> None:
        self._look = look

    def fields(self) -> Sequence[Variable]:
        held = self._look.session.describe()
        self._look.check(held.stop)
        stop = self._look.stop
        first, last = stop.positions[0], stop.positions[-1]
        breakpoints = [
            Variable(name=str(b.number), value=f"{labelled(b.site)}{f' when {b.when}' if b.when else ''}, hit {b.hits}")
            for b in held.breakpoints
        ]
        rules = [Variable(name=str(r.number), value=labelled(r.what)) for r in held.rules]
        stops = [
            Variable(name=str(s.index), value=f"{labelled(s.site)}, step {s.step} ({s.reason})")
            for s in self._look.session.history().stops
        ]
        return [
            Variable(name="name", value=held.name),
            Variable(name="step", value=str(stop.step)),
            Variable(name="layer", value=f"{stop.layer} of {stop.layers} run"),
            Variable(name="positions", value=str(first) if first == last else f"{first}..{last}"),
            Variable(name="text", value=repr(stop.text)),
            Variable(name="new text", value=repr(stop.new_text)),
            _list("breakpoints", breakpoints),
            _list("rules", rules),
            _list("stops", stops),
            Variable(name="residency", value=f"{held.residency}, {held.device_bytes:,} bytes on the device"),
        ]


def _list(name: str, entries: list[Variable]) -> Variable:
    return Variable(name=name, value=str(len(entries)), inside=Fixed(*entries) if entries else None)


# Requests that read a stop: threads, stack, scopes, variables, expressions. Each reply names the stop that it was read
# from; frames and variables of another stop are refused.

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
    def threads(self, given: protocol.Nothing, request: Request) -> Body:
        """Return the followed sessions as threads, with distinct names, and the work in them."""
        threads = self._debuggee.threads.values()
        shown = texts.distinct_labels(one.name for one in threads)
        shown |= {name: f"{shown[name]} ({progress})" for name, progress in self._debuggee.at_work() if name in shown}
        return {"threads": [{"id": one.number, "name": shown[one.name]} for one in threads]}

    # --- the stack ---------------------------------------------------------------------------------------------------

    @handles("stackTrace", protocol.StackTrace)
    def stack_trace(self, given: protocol.StackTrace, request: Request) -> Body:
        """Return as frames the stopped site, its enclosing modules from the innermost outwards, and the model."""
        thread, tree = self._debuggee.thread(given.thread_id), self._debuggee.tree
        stop = thread.stopped.stop
        whose = f" of {thread.session.label}" if self._debuggee.names_sessions else ""
        lines = [(f"{labelled(stop.site)}, step {stop.step}{whose}", tree.line_of(stop.site))]
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

    @handles("scopes", protocol.OfFrame)
    def scopes(self, given: protocol.OfFrame, request: Request) -> Body:
        thread, frame = self.framed(given.frame_id)
        found = [
            {"name": name, "variablesReference": self._keep(thread, content), "expensive": expensive, **sizes(content)}
            for name, content, expensive in scopes_of(thread.stopped, frame)
        ]
        return self._of(thread, {"scopes": found})

    @handles("variables", protocol.Variables)
    def variables(self, given: protocol.Variables, request: Request) -> Body:
        thread, container = self._found(given.variables_reference)
        paged = self._client.capabilities.supports_variable_paging
        found = page(container, given.filter, given.start, given.count, paged=paged)
        edition = thread.stopped.identity
        return self._of(thread, {"variables": [self._references.spell(thread.number, edition, one) for one in found]})

    @handles("setVariable", protocol.SetVariable)
    def set_variable(self, given: protocol.SetVariable, request: Request) -> Body:
        """Edit the stopped value, or a part of it."""
        thread, container = self._found(given.variables_reference)
        changed = container.change(given.name, given.value)
        self._reports.edited(thread)
        spelled = self._references.spell(thread.number, thread.stopped.identity, changed)
        return self._of(thread, {name: spelled[name] for name in CHANGED if name in spelled})

    @handles("evaluate", protocol.Evaluate)
    def evaluate(self, given: protocol.Evaluate, request: Request) -> Body | None:
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

    @handles("completions", protocol.Completions)
    def completions(self, given: protocol.Completions, request: Request) -> Body:
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
        """Return True if the text is spelled as a site; a bare word only if the model has that point or module."""
        if not _SITE.match(text):
            return False
        return "." in text or text.partition("[")[0] in sites.MODEL_POINTS or text in self._debuggee.tree.modules

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
