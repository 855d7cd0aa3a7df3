"""The debuggee: an engine, its model as a source, and the sessions that the client sees as threads."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.editors.dap import protocol
from djinn_jupyter.editors.dap.debug_thread import DebugThread
from djinn_jupyter.editors.dap.protocol import Attach, Launch
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.errors import EngineUnavailable, IllegalMove, UnknownSession, UsageError
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.link.spelling import spell_model
from djinn_jupyter.settings import GivenOptions, chosen
from djinn_jupyter.wire.nouns import Progress
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event
from djinn_jupyter.wire.texts import in_quotes, label, told_apart

InUse = Callable[[], str | None]


class Debuggee:
    """Set by launch or attach, whose arguments are the `plan`; the first thread is the session named there. Thread
    numbers start at `first_thread`, above those of another debugger in the same conversation. `in_use` returns the name
    of the current session of a client that shows no threads, in place of the first session; stack frames and
    breakpoints then name their session."""

    def __init__(self, *, first_thread: int = 1, in_use: InUse | None = None) -> None:
        self.plan: Launch | Attach | None = None
        self.threads: dict[int, DebugThread] = {}
        self._numbers, self._in_use = count(first_thread), in_use
        self._engine: RemoteEngine | None = None
        self._tree: ModelTree | None = None
        self._forget: Callable[[], None] = lambda: None

    @property
    def loaded(self) -> RemoteEngine | None:
        return self._engine

    @property
    def engine(self) -> RemoteEngine:
        if self._engine is None:
            raise IllegalMove("Nothing is being debugged yet: launch or attach first.")
        return self._engine

    @property
    def tree(self) -> ModelTree:
        if self._tree is None:
            raise IllegalMove("There is no model yet: launch or attach first.")
        return self._tree

    def work_with(self, engine: RemoteEngine, tree: ModelTree, hear: Callable[[Event], None]) -> None:
        """Debug an engine; `hear` is called with its events on the connection's thread."""
        self._engine, self._tree = engine, tree
        self._forget = engine.channel.listen("", hear)

    def let_go(self) -> None:
        """Stop listening to the engine's events."""
        forget, self._forget = self._forget, lambda: None
        try:
            forget()
        except EngineUnavailable:
            pass  # the connection is closed: no more events come anyway

    # --- its threads -------------------------------------------------------------------------------------------------

    def follow(self, session: RemoteSession) -> DebugThread:
        number = next(self._numbers)  # never that of a session which was closed
        self.threads[number] = DebugThread(number=number, session=session)
        return self.threads[number]

    @property
    def first(self) -> DebugThread:
        """The session named in launch or attach."""
        if not self.threads:
            raise IllegalMove("Nothing is being debugged yet: launch or attach first.")
        return self.threads[min(self.threads)]

    def closing_ends(self, thread: DebugThread) -> bool:
        """Return True if debugging ends when this session is closed: a client that shows the session in use goes on."""
        return self._in_use is None and thread is self.first

    @property
    def aimed_at(self) -> DebugThread:
        """The session for requests that name none: breakpoints, and lines of the console."""
        if self._in_use is None:
            return self.first
        name = self._in_use()
        thread = None if name is None else self.named(name)
        if thread is None:
            raise UsageError("This notebook works with no session yet; run a prompt first, for example: %djinn_run Hi")
        return thread

    @property
    def names_sessions(self) -> bool:
        return self._in_use is not None

    def thread(self, number: int) -> DebugThread:
        found = self.threads.get(number)
        if found is None:
            known = ", ".join(f"{one.number} ({one.session.label})" for one in self.threads.values()) or "none"
            raise UsageError(f"There is no thread {number}; there are: {known}.")
        return found

    def named(self, session: str) -> DebugThread | None:
        """Return the thread of a session. May be called from any thread: the adapter's may follow one meanwhile."""
        return next((one for one in list(self.threads.values()) if one.name == session), None)

    def at_work(self) -> list[tuple[str, Progress]]:
        """Return the sessions that sweep, collect or read, with their progress; none where the engine has ended."""
        if self._engine is None:
            return []
        try:
            return [(one.name, one.progress) for one in self._engine.sessions() if one.progress is not None]
        except EngineUnavailable:
            return []

    # --- what was asked for ------------------------------------------------------------------------------------------

    @property
    def launched(self) -> bool:
        """True if the first session was launched here: its run begins and ends with this conversation."""
        return isinstance(self.plan, Launch)

    @property
    def follows_all(self) -> bool:
        return isinstance(self.plan, Attach) and self.plan.all_sessions


# The engine and the session that launch and attach name: started, found or chosen. Knows no threads.

Target = tuple[RemoteEngine, ModelTree, RemoteSession]


def launched(plan: protocol.Launch, progress: Callable[[str], None]) -> Target:
    """Load the model, or find its engine, and open a session."""
    engine = loading.load(plan.model, **chosen(GivenOptions, plan), progress=progress)
    name = plan.session or f"dap-{uuid.uuid4().hex[:8]}"
    if not plan.fresh and name in {one.name for one in engine.sessions()}:
        raise UsageError(
            f"There is a session {in_quotes(name)} already: attach to it, or launch with `fresh` to begin it anew."
        )
    return (
        engine,
        ModelTree(engine.description, engine.modules()),
        engine.session(name, fresh=plan.fresh, force=plan.force),
    )


def attached(plan: protocol.Attach) -> Target:
    """Return a session of a running engine."""
    engine = loading.attach(chosen_engine(plan))
    return engine, ModelTree(engine.description, engine.modules()), _chosen_session(engine, plan.session)


def chosen_engine(plan: protocol.Attach) -> Entry:
    """Return the running engine that matches; EngineUnavailable when none does, UsageError when several do."""
    fitting = [entry for entry in running_engines() if _means(plan, entry)]
    if not fitting:
        raise EngineUnavailable("attach: no such engine runs; `djinn list` shows those that do.")
    if len(fitting) > 1:
        known = ", ".join(f"{entry.identity} (pid {entry.pid})" for entry in fitting)
        raise UsageError(f"attach: several engines run: {known}; name one by `model` or `pid`.")
    return fitting[0]


def _means(plan: protocol.Attach, entry: Entry) -> bool:
    if plan.pid is not None and entry.pid != plan.pid:
        return False
    names = (entry.identity.model, entry.found.model, Path(entry.identity.model).name, str(entry.identity))
    return plan.model is None or plan.model in names or spell_model(plan.model) in names


def _chosen_session(engine: RemoteEngine, wanted: str | None) -> RemoteSession:
    shown = told_apart(one.name for one in engine.sessions())
    fitting = [n for n in shown if n == wanted] or [n for n in shown if wanted in (None, shown[n], label(n))]
    if len(fitting) == 1:
        return RemoteSession(engine.channel, fitting[0])
    known = ", ".join(shown.values()) or "none"
    asked = "there is no such session" if not fitting else "name the `session`"
    raise UnknownSession(f"attach: {asked}; there are: {known}.")
