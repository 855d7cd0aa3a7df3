"""Tells the engine when a cell that uses a session runs and has ended, so that the session is there in time.

IPython calls these functions around every cell of the user: they never raise, wait for no answer, and cost nothing
while no model is loaded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from djinn_jupyter.magics.kernel_state import KernelState

_USING: Final = "run|resume|step|back|where|inspect|lens|edit|diff|fork|checkpoint"
"""The magics that need what a session has on the device. For all others it stays where it was sent."""
_MAGIC: Final = re.compile(rf"^\s*%%?djinn_({_USING})\b(.*)$", re.MULTILINE)
_SESSION: Final = re.compile(r"--session[ =](\"[^\"]*\"|\S+)")
_NAME: Final = re.compile(r"\b[^\W\d]\w*\b")


class CellEvents:
    """The hooks of one kernel. `used` are the sessions that the present cell was said to use."""

    def __init__(self, state: KernelState) -> None:
        self._state = state
        self._used: tuple[str, ...] = ()

    def pre_run_cell(self, execution: Any) -> None:
        if self._state.loaded is None:
            return
        try:
            self._used = tuple(self._mentioned(execution.raw_cell or ""))
            for session in self._used:
                self._tell(session, "expected")
        except Exception:  # noqa: BLE001  the user's cell comes first: what goes wrong here is not its business
            self._used = ()

    def post_run_cell(self, result: Any) -> None:
        used, self._used = self._used, ()
        try:
            for session in used:
                self._tell(session, "idle")
        except Exception:  # noqa: BLE001  as above
            return

    def _mentioned(self, cell: str) -> set[str]:
        """Return the sessions that a cell uses: of each magic that of --session, else the present one, and those whose
        objects it names."""
        magics: list[tuple[str, str]] = _MAGIC.findall(cell)
        return {name for verb, line in magics for name in self._used_by(verb, line)} | self._objects(cell)

    def _used_by(self, verb: str, line: str) -> set[str]:
        named = line.split() if verb == "diff" else _SESSION.findall(line)
        asked = {name.strip('"') for name in named}
        found = {full for full, session in self._state.held.items() if asked & {full, session.label}}
        if self._state.present is not None and (len(found) < 2 if verb == "diff" else not asked):
            found.add(self._state.present)
        return found

    def _objects(self, cell: str) -> set[str]:
        from djinn_jupyter.client.session import RemoteSession

        values = (self._state.shell.user_ns.get(name) for name in set(_NAME.findall(cell)))
        return {value.name for value in values if isinstance(value, RemoteSession)}

    def _tell(self, session: str, activity: Any) -> None:
        """Send a note without waiting for the answer; a refusal (the session was closed meanwhile) is ignored."""
        from djinn_jupyter.wire.swapping import Note

        self._state.engine.channel.ask(Note(session=session, activity=activity))


def register(shell: InteractiveShell, events: CellEvents) -> None:
    unregister(shell)
    shell.events.register("pre_run_cell", events.pre_run_cell)
    shell.events.register("post_run_cell", events.post_run_cell)


def unregister(shell: InteractiveShell) -> None:
    for event in ("pre_run_cell", "post_run_cell"):
        for told in list(shell.events.callbacks[event]):
            if isinstance(getattr(told, "__self__", None), CellEvents):
                shell.events.unregister(event, told)
