"""Completion of a line that begins with a djinn magic: options, sites, sessions, checkpoints, models, edits.

Asks the engine only for what it answers within a millisecond; an engine that does not answer completes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from djinn_jupyter.api.edits import KINDS
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link import naming
from djinn_jupyter.magics.parsing import option_strings
from djinn_jupyter.remote import addresses
from djinn_jupyter.wire.texts import natural_order

if TYPE_CHECKING:
    from djinn_jupyter.magics.kernel_state import KernelState

_LINE = re.compile(r"^\s*(?P<kind>%%?)(?P<name>djinn_\w+)\s(?P<rest>.*)$", re.DOTALL)
_SITE_FIRST = frozenset({"djinn_break", "djinn_clear", "djinn_inspect", "djinn_lens", "djinn_watch", "djinn_steer"})
_SESSION_FIRST = frozenset({"djinn_use", "djinn_close", "djinn_diff"})
MODULES = ("attn_out", "mlp_out", "z")
_MOST = 400


class Matcher:
    """The candidates at one place of a line, from the magics' own parsers and the engine in use."""

    def __init__(self, state: KernelState) -> None:
        self.state = state

    def matches(self, line: str) -> list[str]:
        """Return the completions of the last word of `line`, which may be empty."""
        found = _LINE.match(line)
        if found is None:
            return []
        *before, word = found["rest"].split(" ")
        words = [w for w in before if w]
        try:
            candidates = self._candidates(found["name"], words, word)
        except DjinnError:
            return []
        return sorted({c for c in candidates if c.startswith(word) and c != word}, key=natural_order)[:_MOST]

    def _candidates(self, name: str, words: list[str], word: str) -> list[str]:
        last = words[-1] if words else ""
        if last == "--at" and name == "djinn_load":
            return _places()
        if last in ("--site", "--from-site", "--at"):
            return self._sites(word)
        if last == "--session":
            return self._sessions()
        if last == "--to" and name == "djinn_move":
            return self._engines()
        if word.startswith("-"):
            return self._options(name)
        positional = [w for w in words if not w.startswith("-")]
        if name == "djinn_load":
            return self._models(word) if not positional else []
        if name in ("djinn_remove_module", "djinn_name") and self.state.loaded is not None:
            return [module.site for module in self.state.loaded.added_modules()]
        if name in ("djinn_adapter", "djinn_remove_adapter") and self.state.loaded is not None:
            return [*(one.name for one in self.state.loaded.adapters()), *(("off",) if name == "djinn_adapter" else ())]
        if name == "djinn_vram":
            return ["stop"] if not positional else []
        if name == "djinn_swap":
            return ["out", "in"] if not positional else []
        if name in ("djinn_checkpoint", "djinn_restore"):
            return self._checkpoints() if not positional else []
        if name in _SESSION_FIRST or (last in KINDS and "session" in KINDS[last].words):
            return self._sessions()
        if name == "djinn_edit" or (name == "djinn_steer" and len(positional) == 1):
            return list(KINDS) if len(positional) <= 1 else []
        if name in _SITE_FIRST and (not positional or name == "djinn_clear"):
            return [*(MODULES if name == "djinn_lens" else ()), *self._sites(word)]
        return []

    def _options(self, name: str) -> list[str]:
        magics = self.state.shell.magics_manager.magics
        magic: Any = magics["line"].get(name) or magics["cell"].get(name)
        parser = getattr(magic, "parser", None)  # none for a user's own magic, or one that cannot be imported
        return [] if parser is None else sorted(option_strings(parser))

    def _sites(self, word: str) -> list[str]:
        if self.state.loaded is None:
            return []
        found: list[str] = []
        for point in self.state.loaded.description.points:
            if point.layers is None:
                found += [] if point.absent else [point.point]
            else:
                found += [f"{point.point}.{layer}" for layer in point.layers]
        found += [module.site for module in self.state.loaded.added_modules()]
        if word and not any(site.startswith(word) for site in found):
            found = [module.path for module in self.state.loaded.modules()]
        return found

    def _sessions(self) -> list[str]:
        if self.state.loaded is None:
            return []
        return [naming.label(one.name) for one in self.state.loaded.sessions()]

    def _engines(self) -> list[str]:
        """Return the targets of a move: machines of the cluster, or copies here and places with a trusted key."""
        entry = None if self.state.loaded is None else self.state.loaded.entry
        if entry is None:
            return []
        if entry.in_cluster:
            return list(entry.machines)
        copies = (one.identity for one in self.state.client.engines() if one.identity != entry.identity)
        here = [str(one.copy) for one in copies if replace(one, copy=entry.identity.copy) == entry.identity]
        return [*here, *_places()]

    def _checkpoints(self) -> list[str]:
        return [kept.name for kept in self.state.loaded.checkpoints()] if self.state.loaded is not None else []

    def _models(self, word: str) -> list[str]:
        return ["demo", *(entry.identity.model for entry in self.state.client.engines()), *_folders(word)]


def _folders(word: str) -> list[str]:
    """Return the folders with a model that start with a word. An unreadable folder has none."""
    with suppress(OSError, RuntimeError, ValueError):
        folder = Path(word or ".").expanduser()
        parent = folder if word.endswith("/") else folder.parent
        return [f"{word[: word.rfind('/') + 1]}{one.name}" for one in parent.iterdir() if _has_model(one)]
    return []


def _has_model(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "config.json").is_file()
    return False


def _places() -> list[str]:
    """Return the places whose engines have a key that this user trusts."""
    return list(addresses.key_folder().names("trusted"))
