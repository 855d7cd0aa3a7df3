"""Commands that read a stop: threads, stack, scopes, variables, expressions; and the model's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.dap import arguments, speaking
from djinn_jupyter.dap.containers import page, sizes
from djinn_jupyter.dap.conversation import Asked
from djinn_jupyter.dap.followed import Followed
from djinn_jupyter.dap.scopes import scopes_of
from djinn_jupyter.dap.tree import REFERENCE, Enclosing
from djinn_jupyter.dap.values import Activation, Look
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.names import told_apart
from djinn_jupyter.wire.sites import MODEL_POINTS

if TYPE_CHECKING:
    from djinn_jupyter.dap.adapter import Adapter

Body = Mapping[str, Any]
FRAMES_A_THREAD: Final = 1000
_SITE = re.compile(r"^[A-Za-z_][\w.]*(\[[-\d:, ]+\])?$")


def threads(adapter: Adapter, asked: Asked) -> Body:
    """Return the followed sessions as threads, with names that tell them apart."""
    shown = told_apart(one.name for one in adapter.followed.values())
    return {"threads": [{"id": one.number, "name": shown[one.name]} for one in adapter.followed.values()]}


# --- the stack -------------------------------------------------------------------------------------------------------


def stack_trace(adapter: Adapter, asked: Asked) -> Body:
    """Return as frames the stopped site, its enclosing modules from the innermost outwards, and the model."""
    given: arguments.StackTrace = arguments.read(arguments.StackTrace, asked.command, asked.arguments)
    one = adapter.thread(given.thread_id)
    look = looked_at(one)
    around = adapter.tree.enclosing(look.stop.site)
    whose = f" of {one.session.label}" if adapter.names_sessions else ""
    lines = [(f"{look.stop.site}, step {look.stop.step}{whose}", adapter.tree.line_of(look.stop.site))]
    lines += [(frame.name, frame.line) for frame in around]
    frames = [_frame(adapter, one, index, *line) for index, line in enumerate(lines)]
    shown = frames[given.start_frame :][: given.levels or None]
    return {"stackFrames": shown, "totalFrames": len(frames)}


def _frame(adapter: Adapter, one: Followed, index: int, name: str, line: int) -> dict[str, Any]:
    return {
        "id": one.number * FRAMES_A_THREAD + index,
        "name": name,
        "source": adapter.tree.source,
        "line": line if adapter.client.lines_start_at_1 else line - 1,
        "column": 1,
    }


def framed(adapter: Adapter, number: int) -> tuple[Followed, Enclosing | None]:
    """Return the thread of a frame and the enclosing module that it shows; None for the stop itself."""
    thread, index = divmod(number, FRAMES_A_THREAD)
    one = adapter.thread(thread)
    around = adapter.tree.enclosing(looked_at(one).stop.site)
    if not 0 <= index <= len(around):
        raise UsageError(f"There is no frame {number}; ask for the stack of the present stop.")
    return one, None if index == 0 else around[index - 1]


def looked_at(one: Followed) -> Look:
    one.require_stopped()
    if one.look is None:
        one.look = Look(one.session, one.session.stop)
    return one.look


# --- values ----------------------------------------------------------------------------------------------------------


def scopes(adapter: Adapter, asked: Asked) -> Body:
    given: arguments.OfFrame = arguments.read(arguments.OfFrame, asked.command, asked.arguments)
    one, frame = framed(adapter, given.frame_id)
    found = [
        {
            "name": name,
            "variablesReference": adapter.references.keep(one.number, content),
            "expensive": expensive,
            **sizes(content),
        }
        for name, content, expensive in scopes_of(looked_at(one), frame)
    ]
    return {"scopes": found}


def variables(adapter: Adapter, asked: Asked) -> Body:
    given: arguments.Variables = arguments.read(arguments.Variables, asked.command, asked.arguments)
    owner, container = adapter.references.find(given.variables_reference)
    paged = adapter.client.supports_variable_paging
    found = page(container, given.filter, given.start, given.count, paged=paged)
    return {"variables": [adapter.references.spell(owner, variable) for variable in found]}


def set_variable(adapter: Adapter, asked: Asked) -> Body:
    """Edit the stopped value, or a part of it."""
    given: arguments.SetVariable = arguments.read(arguments.SetVariable, asked.command, asked.arguments)
    owner, container = adapter.references.find(given.variables_reference)
    changed = container.change(given.name, given.value)
    speaking.tell_changed(adapter, adapter.thread(owner))
    spelled = adapter.references.spell(owner, changed)
    return {
        name: spelled[name] for name in ("value", "type", "variablesReference", "indexedVariables") if name in spelled
    }


def evaluate(adapter: Adapter, asked: Asked) -> Body | None:
    """Evaluate a site to its value, or an expression of the condition language; in the console also run verbs."""
    given: arguments.Evaluate = arguments.read(arguments.Evaluate, asked.command, asked.arguments)
    one = adapter.aimed_at if given.frame_id is None else framed(adapter, given.frame_id)[0]
    text = given.expression.strip()
    if given.context == "repl" and speaking.is_said(text):
        return speaking.speak(adapter, one, asked, text)
    look = looked_at(one)
    if _is_site(adapter, text):
        activation = Activation(look, text)
        return {
            "result": activation.summary(),
            "variablesReference": adapter.references.keep(one.number, activation),
        }
    stop = look.stop
    position = stop.reply.matched if stop.reply.matched is not None else stop.positions[-1]
    value = one.session.evaluate(text, position)
    return {"result": repr(value), "type": type(value).__name__, "variablesReference": 0}


def _is_site(adapter: Adapter, text: str) -> bool:
    """Return True if the text is spelled as a site; a bare word counts only if it is a point or module of the model."""
    if not _SITE.match(text):
        return False
    return "." in text or text.partition("[")[0] in MODEL_POINTS or text in adapter.tree.modules


def completions(adapter: Adapter, asked: Asked) -> Body:
    """Complete verbs at the beginning of a console line, and sites anywhere."""
    given: arguments.Completions = arguments.read(arguments.Completions, asked.command, asked.arguments)
    line = given.text.split("\n")[given.line - 1 if given.line else 0]
    before = line[: given.column - 1 if adapter.client.lines_start_at_1 else given.column]
    word = before.split(" ")[-1]
    begun = [] if " " in before.lstrip() else [verb for verb in speaking.VERBS if verb.startswith(word)]
    found = [*begun, *(site for site in adapter.tree.sites() if site.startswith(word))] if word else begun
    start, length = len(before) - len(word), len(word)
    return {"targets": [{"label": text, "start": start, "length": length} for text in found[:400]]}


# --- the model as a source -------------------------------------------------------------------------------------------


def source(adapter: Adapter, asked: Asked) -> Body:
    given: arguments.ReadSource = arguments.read(arguments.ReadSource, asked.command, asked.arguments)
    wanted = given.source or arguments.Source()
    if not adapter.tree.means(wanted.name, wanted.path, given.source_reference or wanted.source_reference):
        raise UsageError(f"The only source is {adapter.tree.name}, the model (reference {REFERENCE}).")
    return {"content": adapter.tree.text, "mimeType": "text/plain"}


def loaded_sources(adapter: Adapter, asked: Asked) -> Body:
    return {"sources": [adapter.tree.source]}
