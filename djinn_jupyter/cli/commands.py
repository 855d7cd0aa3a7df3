"""The value to which a family of commands adds its own, and a parser that names in a sentence any word it does not
know.

Every command sets the default `command`: a function of the parsed options that returns the exit status.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from djinn_jupyter.client.engines.spelling import closest, closest_option, in_full, value_in_words

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
_PARAMETER = re.compile(r"^[a-z]+(?= is at least)|\b[a-z]+(?:_[a-z]+)+\b(?!=)")  # an argument is Python


class Parser(argparse.ArgumentParser):
    """The parser of a command, which itself refuses unknown options: `djinn` does not know them."""

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
    """Return an error with the options as they were typed, in place of the parameters of Python that they are."""
    given = vars(options)

    def spelled(found: re.Match[str]) -> str:
        return f"--{found[0].replace('_', '-')}" if found[0] in given else found[0]

    return _PARAMETER.sub(spelled, said)
