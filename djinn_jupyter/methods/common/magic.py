"""Arguments that the magics of several methods share: prompts, and engines beside this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.kernel_state import KernelState
from djinn_jupyter.magics.parsing import Group, Option, option
from djinn_jupyter.wire.texts import in_quotes

PROMPTS = option(
    "--prompts",
    metavar="FILE|NAME",
    help="a file with one prompt a line (.json, .jsonl: texts, token ids, or objects with `text` or `tokens`), "
    "or a variable with a list",
)


PAIRS = option(
    "--prompts",
    metavar="FILE|NAME",
    help="many pairs: a file or list of (clean, corrupted), for --from; with answers, for --metric",
)
A_LINE: Final = "a session, or a variable with a text or token ids"


def from_line(dest: str, words: str) -> Option:
    """Return the option that names the other line of a pair."""
    return option("--from", dest=dest, metavar="NAME", help=words)


def engines_beside(state: KernelState, places: Iterable[str]) -> list[RemoteEngine]:
    """Return the engines of --beside."""
    return [state.client.beside(state.engine, where, progress=state.screen.say) for where in places]


def prompts_of(group: Group, name: str) -> object:
    """Return the value of --prompts: a variable of this notebook, or a file."""
    there = group.state.shell.user_ns.get(name)
    if there is not None and not callable(there):
        return there
    path = given_path(name, "file")
    if not path.is_file():
        raise UsageError(f"There is neither a variable nor a file {in_quotes(name)} with prompts.")
    return path
