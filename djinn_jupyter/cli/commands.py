"""Shared parts of commands: how a family of commands is added, and a parser that names unknown words in a sentence.

Every command sets the default `command`: a function of the parsed options that returns the exit status.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Final, NoReturn, TypeAlias

from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link.spelling import closest, closest_option, in_full, value_in_words
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.units import read_duration, read_moment
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, StartFailed, StillStarting, encode_notice

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
_PARAMETER = re.compile(r"^[a-z]+(?= is at least)|\b[a-z]+(?:_[a-z]+)+\b(?!=)")  # a Python argument


class Parser(argparse.ArgumentParser):
    """The parser of a command, which refuses unknown options itself, because `djinn` does not know them."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = None if args is None else in_full(args, self._option_string_actions)
        found, extra = super().parse_known_args(words, namespace)
        for word in extra:
            if word.startswith("-"):
                name = word.partition("=")[0]
                self.error(f"There is no option {name}{closest_option(name, self._option_string_actions, {}) or '.'}")
            self.error(f"{word!r} is one word too many.")
        return found, extra

    def error(self, message: str) -> NoReturn:
        """Print one sentence, and where to read on."""
        self.exit(2, f"djinn: {value_in_words(message)} ({self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            what, there = str(action.metavar).lower(), ", ".join(action.choices)
            self.error(f"There is no {what} {value!r}{closest(value, action.choices) or '.'} There are: {there}.")
        super()._check_value(action, value)


def as_typed(options: argparse.Namespace, said: str) -> str:
    """Return an error that names the typed options instead of their Python parameters."""
    given = vars(options)

    def spelled(found: re.Match[str]) -> str:
        return f"--{found[0].replace('_', '-')}" if found[0] in given else found[0]

    return _PARAMETER.sub(spelled, said)


def moment(text: str) -> float:
    """Return a moment in seconds since the epoch."""
    return _said(read_moment, text)


def duration(text: str) -> float:
    """Return a duration in seconds."""
    return _said(read_duration, text)


def _said(read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tell_entry(find: Callable[[], Entry]) -> int:
    """Write the entry that was found, or the error; return the exit status."""
    try:
        entry = find()
    except DjinnError as error:
        _write(StartFailed(code=error.code, message=str(error)))
        return 1
    _write(Ready(entry=entry))
    return 0


def told_as_notices() -> StartCallbacks:
    return StartCallbacks(
        line=lambda line: _write(Progressed(line=line)), second=lambda line: _write(StillStarting(line=line))
    )


def _write(notice: Notice) -> None:
    sys.stdout.buffer.write(encode_notice(notice))
    sys.stdout.buffer.flush()


GROUP: Final = "djinn_jupyter.commands"
NO_EVALUATION: Final = (
    "The evaluation is a package of its own: run `pip install ./evaluation` in a checkout of Djinn's repository."
)


def add_to(commands: Commands) -> None:
    found = entry_points(group=GROUP)
    for point in found:
        try:
            point.load().add_to(commands)
        except ImportError as error:  # one broken installation leaves the other commands
            _add_refusal(
                commands, point.name, f"What adds this command cannot be imported ({error}); install it again."
            )
    if "experiment" not in found.names:
        _add_refusal(commands, "experiment", NO_EVALUATION)


def _add_refusal(commands: Commands, name: str, why: str) -> None:
    def refuse(options: argparse.Namespace) -> NoReturn:
        raise UsageError(why)

    absent = commands.add_parser(name, help="not installed here", add_help=False)
    absent.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    absent.set_defaults(command=refuse)
