"""The state of this kernel: an engine, the present session, and the last outcome of each session."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.magics.screen import ReceivingBar, Screen
from djinn_jupyter.wire.texts import few_of

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from djinn_jupyter.api.engine import RemoteEngine
    from djinn_jupyter.api.session import RemoteSession
    from djinn_jupyter.api.stops import Stop
    from djinn_jupyter.magics.live_chart import LiveChart
    from djinn_jupyter.wire.nouns import SessionDescription


class KernelState:
    """One per kernel, made by `%load_ext` and passed to every group of magics."""

    def __init__(self, shell: InteractiveShell, client: Any = None) -> None:
        import djinn_jupyter

        self.shell: Any = shell
        self.client = client if client is not None else djinn_jupyter
        self.screen = Screen(shell)
        self.outcomes: dict[str, Stop] = {}
        self.chart: LiveChart | None = None
        self._held: dict[str, RemoteSession] = {}
        self._engine: RemoteEngine | None = None
        self._present: str | None = None
        self._told_of_sidebar = False

    def take_sidebar_hint(self) -> bool:
        """Return whether to name the magics that replace the sidebar: at the first call, where there is none."""
        due = not self._told_of_sidebar and not naming.has_sidebar()
        self._told_of_sidebar = True
        return due

    @property
    def loaded(self) -> RemoteEngine | None:
        return self._engine

    @property
    def held(self) -> Mapping[str, RemoteSession]:
        """The sessions that this kernel has open, by their full names."""
        return self._held

    @property
    def present(self) -> str | None:
        """The name of the session in use."""
        return self._present

    @property
    def engine(self) -> RemoteEngine:
        if self._engine is None:
            raise UsageError("No model is loaded in this notebook; load one first, for example: %djinn_load demo")
        return self._engine

    def session(self, name: str | None = None) -> RemoteSession:
        """Return the present session, or the one called `name`."""
        engine = self.engine
        if name is not None:
            return self.find(name)
        if self._present is None:
            there = few_of(naming.distinct_labels(one.name for one in engine.sessions()).values(), "")
            raise UsageError(f"No session is in use; choose one with %djinn_use NAME (there are: {there}).")
        return self._held[self._present]

    def find(self, name: str, *, join: bool = False) -> RemoteSession:
        """Return an existing session, open here or in the engine, by its full name or its displayed name."""
        full = self.meant(name).name
        return self._held.get(full) or self.hold(self.engine.session(full, join=join))

    def meant(self, name: str) -> SessionDescription:
        """Return the one session with that full or displayed name, without opening it."""
        known = {one.name: one for one in self.engine.sessions()}
        return known[naming.the_one(name, known)]

    def reach(self, name: str | None) -> RemoteSession:
        """Return the present session, or the one called `name`; a session of another notebook is not opened."""
        if name is None:
            return self.session()
        full = self.meant(name).name
        return self._held.get(full) or self.engine.reach(full)

    def load(self, engine: RemoteEngine, session: RemoteSession) -> None:
        """Use this engine from now on, and detach the open sessions of another one."""
        if self._engine is not None and self._engine.channel is not engine.channel:
            self.leave()
        self._engine = engine
        engine.channel.show_receiving(ReceivingBar(self.screen))
        self.use(self.hold(session))

    def leave(self) -> None:
        """Release the engine and all sessions open here; both live on. An ended engine gets no message."""
        for session in self._held.values():
            try:
                session.detach()
            except DjinnError:
                pass  # closed by another client, or the engine has ended: nothing to release
        self.forget()

    def end_chart(self) -> None:
        """Freeze the memory chart, if one runs."""
        if self.chart is not None:
            self.chart.stop()
            self.chart = None

    def forget(self) -> None:
        self.end_chart()
        self._held.clear()
        self.outcomes.clear()
        self._engine = self._present = None

    def tell_unkept(self) -> None:
        """Print a line if the engine's journal does not keep the work of a magic."""
        said = None if self._engine is None else self._engine.channel.unkept.read()
        if said is not None:
            self.screen.say(f"Not kept: {said}")

    def hold(self, session: RemoteSession) -> RemoteSession:
        self._held[session.name] = session
        return session

    @contextmanager
    def with_names(self) -> Iterator[None]:
        """Label features within the block with their names; not without an engine."""
        if self._engine is None:
            yield
            return
        from djinn_jupyter.api import names

        with names.naming(names.digests_of(self._engine.channel)):
            yield

    def use(self, session: RemoteSession) -> None:
        """Make the session the present one, and notify the sidebar through the engine, without waiting."""
        from djinn_jupyter.wire.weights import Note

        self._present = session.name
        self.engine.channel.ask(Note(session=session.name, activity="in_use"))

    def drop(self, session: RemoteSession) -> None:
        """Forget a session that has been closed."""
        self._held.pop(session.name, None)
        self.outcomes.pop(session.name, None)
        if self._present == session.name:
            self._present = None

    def keep(self, name: str | None, value: object) -> None:
        """Bind a result to the variable of `-o`, if given."""
        if name is not None:
            self.shell.push({name: value})

    def value(self, expression: str) -> Any:
        """Return a number, or the expression's value in the user's own namespace, in the user's kernel."""
        try:
            return float(expression)
        except ValueError:
            pass
        try:
            return self.shell.ev(expression)
        except NameError as error:
            raise UsageError(
                f"This notebook knows no {error.name!r}: write a value, or give that name one in a cell first."
            ) from None
        except Exception as error:  # noqa: BLE001  whatever the user's expression raises is told in one line
            raise UsageError(f"{expression!r} has no value here ({type(error).__name__}: {error}).") from None

    @property
    def torch(self) -> Any:
        """torch, if this kernel has already imported it."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise UsageError("--torch needs torch in this kernel: run `import torch` first, or leave the option out.")
        return torch


# Notify the engine when a cell that uses a session starts and ends, so that the session is there in time. IPython calls
# these functions around every cell of the user: they never raise, wait for no answer, and cost nothing while no model
# is loaded.

_USING: Final = "run|resume|step|back|where|inspect|lens|edit|diff|fork|checkpoint"
"""The magics that need what a session has on the device. For all others it stays where it was sent."""
_MAGIC: Final = re.compile(rf"^\s*%%?djinn_({_USING})\b(.*)$", re.MULTILINE)
_SESSION: Final = re.compile(r"--session[ =](\"[^\"]*\"|\S+)")
_NAME: Final = re.compile(r"\b[^\W\d]\w*\b")


class CellEvents:
    """The hooks of one kernel. `used` are the sessions that the present cell uses, as the engine was told."""

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
        """Return the sessions that a cell uses: each magic's --session, else the present one, and those of objects it
        names."""
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
        from djinn_jupyter.api.session import RemoteSession

        values = (self._state.shell.user_ns.get(name) for name in set(_NAME.findall(cell)))
        return {value.name for value in values if isinstance(value, RemoteSession)}

    def _tell(self, session: str, activity: Any) -> None:
        """Send a note without waiting for the answer; a refusal (the session was closed meanwhile) is ignored."""
        from djinn_jupyter.wire.weights import Note

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
