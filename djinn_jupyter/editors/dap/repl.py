"""The verbs of the debug console, spelled as the magics spell them: `edit scale 0.9`, `lens`, `steer ...`, `back 2`.

Engine options, sampling and edits are described once for console and magics. Only two of the ten other arguments agree,
so a common table would be longer than the two parsers.
"""

from __future__ import annotations

import argparse
from typing import Any, Final, Literal, NoReturn

from djinn_jupyter.api.edits import EXAMPLES, KINDS, parse_edit
from djinn_jupyter.api.patches import Patch
from djinn_jupyter.editors.dap.debuggee import DebugThread
from djinn_jupyter.editors.dap.execution import Execution
from djinn_jupyter.editors.dap.protocol import Body, Request
from djinn_jupyter.editors.dap.reports import Reports, identified
from djinn_jupyter.editors.dap.values import read_value, words
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.texts import unquoted

MOVES: Final = ("step", "back", "resume")
VERBS: Final = ("edit", "revert", "effect", "lens", "steer", "unsteer", "fork", "help", *MOVES)


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError with one sentence instead of exiting the process."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "add_help": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}. {self.format_usage().strip()}")


def parser() -> _Parser:
    """Return the parser of the console's verbs; `help` lists them."""
    top = _Parser(prog="")
    verbs = top.add_subparsers(dest="verb", required=True)
    edit = verbs.add_parser("edit", help="change the stopped value: scale 0.9, add [..], set 0, zero, clamp -1 1")
    _add_edit(edit)
    edit.add_argument("--site", help="the stopped site with a selector, such as z.9[6]")
    edit.add_argument("--effect", action="store_true", help="also measure the next token's distribution")
    verbs.add_parser("revert", help="undo all edits of this stop")
    verbs.add_parser("effect", help="the next token without and with the edits of this stop")
    lens = verbs.add_parser("lens", help="the most probable next tokens at a site, by default the stopped one")
    lens.add_argument("site", nargs="?")
    steer = verbs.add_parser("steer", help="a rule: the edit at every pass until `unsteer`")
    steer.add_argument("site")
    _add_edit(steer)
    steer.add_argument("--when", nargs="+", metavar="EXPR", help="only where this condition holds")
    steer.add_argument("--on", choices=("prompt", "new"), help="only in passes over the prompt, or over new tokens")
    verbs.add_parser("unsteer", help="end a rule, or all").add_argument("number", nargs="?", type=int)
    verbs.add_parser("fork", help="a second session that stands here").add_argument("name")
    step = verbs.add_parser("step", help="go on by layers, tokens or points")
    _add_count(step, "token", "point")
    back = verbs.add_parser("back", help="go back by stops, layers or tokens")
    _add_count(back, "layer", "token")
    verbs.add_parser("resume", help="go on").add_argument("--free", action="store_true", help="pass all breakpoints")
    verbs.add_parser("help", help="this list")
    return top


def _add_edit(to: argparse.ArgumentParser) -> None:
    to.add_argument("words", nargs="+", metavar="EDIT", help=EXAMPLES)
    to.add_argument("--positions", metavar="P", help="such as -1, 0,4 or 2:5")
    for name, kind in KINDS.items():
        for one in kind.options:
            to.add_argument(one.flag, metavar=one.metavar, help=f"{name}: {one.help}", type=one.type)


def _add_count(to: argparse.ArgumentParser, *units: str) -> None:
    to.add_argument("count", nargs="?", type=int, default=1)
    for unit in units:
        to.add_argument(f"--{unit}", dest="by", action="store_const", const=unit)


def is_said(text: str) -> bool:
    return text.split(" ")[0] in VERBS


class Repl:
    """Runs lines of the console. Its methods have the verbs' names; each acts on the stop that the client shows."""

    def __init__(self, execution: Execution, reports: Reports) -> None:
        self._execution, self._reports = execution, reports
        self._moves = {"step": self._step, "back": self._back, "resume": self._resume}
        self._verbs = {
            "edit": self._edit,
            "revert": self._revert,
            "effect": self._effect,
            "lens": self._lens,
            "steer": self._steer,
            "unsteer": self._unsteer,
            "fork": self._fork,
        }

    def speak(self, thread: DebugThread, request: Request, text: str) -> Body | None:
        """Run a line; None for a move, which is answered when the engine has accepted it."""
        said = parser().parse_args(words(text))
        if said.verb in self._moves:
            self._moves[said.verb](thread, request, said)
            return None
        if said.verb == "help":
            return {"result": _help(), "variablesReference": 0}
        thread.require_stopped()
        result = self._verbs[said.verb](thread, said)
        return {"result": result, "variablesReference": 0, **identified(thread.stopped.identity)}

    def _edit(self, thread: DebugThread, said: argparse.Namespace) -> str:
        done = thread.session.edit(_edit_of(said), said.positions, said.site, stop=thread.seen)
        self._reports.edited(thread)
        size = "" if done.relative_size is None else f", relative size {done.relative_size:.3g}"
        line = f"{done.edit} at {done.site}: {list(done.shape)} touched, {done.entries_changed} entries changed{size}"
        return f"{line}\n{thread.stopped.effect()!r}" if said.effect else line

    def _revert(self, thread: DebugThread, said: argparse.Namespace) -> str:
        stop = thread.session.revert(stop=thread.seen)
        self._reports.edited(thread)
        return repr(stop)

    def _effect(self, thread: DebugThread, said: argparse.Namespace) -> str:
        return repr(thread.stopped.effect())

    def _lens(self, thread: DebugThread, said: argparse.Namespace) -> str:
        return repr(thread.stopped.lens(site=said.site))

    def _steer(self, thread: DebugThread, said: argparse.Namespace) -> str:
        when = None if not said.when else unquoted(said.when[0]) if len(said.when) == 1 else " ".join(said.when)
        rule = thread.session.steer(said.site, _edit_of(said), said.positions, when=when, on=said.on)
        return f"rule {rule.number}: {rule.what}"

    def _unsteer(self, thread: DebugThread, said: argparse.Namespace) -> str:
        return f"{thread.session.unsteer(said.number)} rules ended"

    def _fork(self, thread: DebugThread, said: argparse.Namespace) -> str:
        fork = thread.session.fork(said.name, stop=thread.stopped.identity)
        return f"{fork.label} forked from {thread.session.label}; attach to it to see it here"

    def _step(self, thread: DebugThread, request: Request, said: argparse.Namespace) -> None:
        by: Literal["layer", "token", "point"] = said.by or "layer"
        self._execution.go_on(thread, request, "step", lambda session, seen: session.step(said.count, by=by, stop=seen))

    def _back(self, thread: DebugThread, request: Request, said: argparse.Namespace) -> None:
        by: Literal["stop", "layer", "token"] = said.by or "stop"
        self._execution.begin(thread, request, "back", lambda session, seen: session.back(said.count, by=by, stop=seen))

    def _resume(self, thread: DebugThread, request: Request, said: argparse.Namespace) -> None:
        self._execution.go_on(
            thread, request, "continue", lambda session, seen: session.resume(free=said.free, stop=seen)
        )


def _edit_of(said: argparse.Namespace) -> Edit | Patch:
    return parse_edit(said.words, value=read_value, find=str, options=vars(said))


def _help() -> str:
    subparsers = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    spelled = [(choice.metavar or choice.dest, choice.help or "") for choice in subparsers._choices_actions]
    return "\n".join(f"{name:<8}  {text}" for name, text in spelled)
