"""The debuggee: an engine, its model as a source, and the sessions that the client sees as threads."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap import protocol
from djinn_jupyter.editors.dap.breakpoints import BreakpointRecord
from djinn_jupyter.editors.dap.protocol import Attach, Launch, Request
from djinn_jupyter.editors.dap.tree import ModelTree
from djinn_jupyter.editors.dap.values import StoppedValues
from djinn_jupyter.errors import EngineUnavailable, IllegalMove, UnknownSession, UsageError
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.link.spelling import spell_model
from djinn_jupyter.settings import GivenOptions, chosen
from djinn_jupyter.wire.nouns import Progress, SessionDescription, StopIdentity
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event
from djinn_jupyter.wire.texts import distinct_labels, in_quotes, label

MoveName = Literal["run", "continue", "step", "back"]


@dataclass(slots=True, kw_only=True, eq=False)
class ThreadMove:
    """A move requested here that has no reply yet. `request` is None once it is answered."""

    name: MoveName
    request: Request | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class DebugThread:
    """A session that the client sees. `number` is its thread id. `look` holds the values fetched at the present stop,
    None where the session is not stopped or none were fetched. `breakpoint_record` has the breakpoints that the editor
    set in it."""

    number: int
    session: RemoteSession
    state: Literal["idle", "running", "paused"] = "idle"
    look: StoppedValues | None = None
    move: ThreadMove | None = None
    breakpoint_record: BreakpointRecord = field(default_factory=BreakpointRecord)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def seen(self) -> StopIdentity | None:
        """The stop that the editor was shown last, until the session leaves it."""
        return None if self.look is None else self.look.identity

    @property
    def stopped(self) -> StoppedValues:
        """The values at the present stop. IllegalMove where the session is not stopped."""
        self.require_stopped()
        if self.look is None:
            self.look = StoppedValues(self.session, self.session.stop)
        return self.look

    def arrived(self, stop: Paused) -> None:
        self.state, self.look = "paused", StoppedValues(self.session, stop)

    def left(self) -> None:
        """Mark the session as running and drop the values of its stop."""
        self.state, self.look = "running", None

    def require_stopped(self) -> None:
        if self.move is not None or self.state == "running":
            raise IllegalMove(f"Session {in_quotes(self.session.label)} is running; pause it first.")
        if self.state != "paused":
            raise IllegalMove(
                f"Session {in_quotes(self.session.label)} stands at no stop: its run is over or has not begun."
            )


def state_of(session: SessionDescription) -> Literal["idle", "running", "paused"]:
    return "idle" if session.state == "closed" else session.state


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
        number = next(self._numbers)  # never a closed session's
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
    shown = distinct_labels(one.name for one in engine.sessions())
    fitting = [n for n in shown if n == wanted] or [n for n in shown if wanted in (None, shown[n], label(n))]
    if len(fitting) == 1:
        return RemoteSession(engine.channel, fitting[0])
    known = ", ".join(shown.values()) or "none"
    asked = "there is no such session" if not fitting else "name the `session`"
    raise UnknownSession(f"attach: {asked}; there are: {known}.")
