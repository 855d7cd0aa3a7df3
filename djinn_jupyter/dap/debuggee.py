"""The debuggee: an engine, its model as a source, and the sessions that the client sees as threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.dap.arguments import Attach, Launch
from djinn_jupyter.dap.debug_thread import DebugThread
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.errors import EngineUnavailable, IllegalMove, UsageError
from djinn_jupyter.wire.nouns import Progress
from djinn_jupyter.wire.replies import Event

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
