"""The adapter of one client: handles requests, engine events and outcomes of moves in one order, on one thread.

`receive` may be called from any thread; `run` handles queued work until the conversation is over. The commands are
implemented in `configuring`, `moving` and `looking`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from djinn_jupyter.client.connection.io_thread import beside_debuggers
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.registry import is_alive
from djinn_jupyter.dap.arguments import Attach, Initialize, Launch
from djinn_jupyter.dap.containers import References
from djinn_jupyter.dap.conversation import Asked, Conversation, Say
from djinn_jupyter.dap.followed import Followed
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.errors import DjinnError, EngineUnavailable, IllegalMove, UsageError
from djinn_jupyter.wire.replies import Event

log = logging.getLogger(__name__)

Result = TypeVar("Result")
InUse = Callable[[], str | None]
LOOK_SECONDS = 1.0  # between two checks that the engine's process is alive


class Adapter:
    """The adapter. `engine`, `tree` and `followed` are set by launch or attach; the first of `followed` is the
    requested session. Thread and reference numbers start above those that another debugger in the same conversation
    uses. `in_use` returns the name of the current session of a client that shows no threads, in place of the first
    session; stack frames and breakpoints then name their session."""

    def __init__(
        self, say: Say, *, first_thread: int = 1, first_reference: int = 1, in_use: InUse | None = None
    ) -> None:
        self.conversation = Conversation(say)
        self.client = Initialize()
        self.plan: Launch | Attach | None = None
        self.references = References(first_reference)
        self.first_thread = first_thread
        self._in_use = in_use
        self.followed: dict[int, Followed] = {}
        self.over = False
        self._engine: RemoteEngine | None = None
        self._tree: ModelTree | None = None
        self._forget: Callable[[], None] = lambda: None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lost = self._terminated = False

    # --- from any thread -------------------------------------------------------------------------------------------

    def receive(self, message: dict[str, Any]) -> None:
        self.post(lambda: self._answer(message))

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work` for the adapter's thread, in order of arrival."""
        self._inbox.put(work)

    def end(self) -> None:
        """Leave the session after the client has gone."""
        from djinn_jupyter.dap import configuring

        self.post(lambda: configuring.leave(self))

    # --- on the adapter's thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.over:
            self.step(LOOK_SECONDS)

    def step(self, seconds: float) -> None:
        """Do the next queued work, waiting at most `seconds`; without any, settle late moves and check the engine."""
        from djinn_jupyter.dap import moving

        try:
            work = self._inbox.get(timeout=min([seconds, *moving.waits(self)]))
        except Empty:
            moving.settle_late(self)
            self._see_engine()
        else:
            work()

    def work(self, job: Callable[[], Result], then: Callable[[Result | DjinnError], None]) -> None:
        """Run a slow job on a separate thread; `then` is called on the adapter's thread with its result or error."""

        def do() -> None:
            outcome: Result | DjinnError
            try:
                outcome = job()
            except DjinnError as error:
                outcome = error
            except Exception as error:  # the top of this thread: the client waits for an answer
                log.exception("unforeseen")
                outcome = DjinnError(f"The adapter met an error it does not know ({type(error).__name__}: {error}).")
            self.post(lambda: then(outcome))

        beside_debuggers(threading.Thread(target=do, name="djinn-dap-work", daemon=True)).start()

    def _answer(self, message: dict[str, Any]) -> None:
        from djinn_jupyter.dap.commands import COMMANDS

        asked = _asked(message)
        if asked is None:
            self.conversation.write("A message that is no request was passed over.\n", "stderr")
            return
        try:
            command = COMMANDS.get(asked.command)
            if command is None:
                raise UsageError(f"This adapter has no command {asked.command!r}.")
            body = command(self, asked)
        except DjinnError as error:
            self.conversation.refuse(asked, error)
        except Exception as error:
            log.exception("unforeseen")
            self.conversation.refuse(asked, DjinnError(f"The adapter met an error it does not know ({error!r})."))
        else:
            if body is not None:
                self.conversation.respond(asked, body)

    # --- the engine and its sessions -------------------------------------------------------------------------------

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

    @property
    def first(self) -> Followed:
        """The session named in launch or attach."""
        self.engine  # noqa: B018  raises IllegalMove before launch or attach
        return self.followed[min(self.followed)]

    @property
    def aimed_at(self) -> Followed:
        """The session for requests that name none: breakpoints, and lines of the console."""
        if self._in_use is None:
            return self.first
        name = self._in_use()
        one = None if name is None else self.named(name)
        if one is None:
            raise UsageError("This notebook works with no session yet; run a prompt first, for example: %djinn_run Hi")
        return one

    @property
    def names_sessions(self) -> bool:
        return self._in_use is not None

    def work_with(self, engine: RemoteEngine, tree: ModelTree, hear: Callable[[Event], None]) -> None:
        self._engine, self._tree = engine, tree
        self._forget = engine.channel.listen("", lambda event: self.post(lambda: hear(event)))

    def let_go(self) -> None:
        """Stop listening to the engine's events."""
        forget, self._forget = self._forget, lambda: None
        try:
            forget()
        except EngineUnavailable:
            pass  # the connection is closed: no more events come anyway

    def follow(self, followed: Followed) -> Followed:
        self.followed[followed.number] = followed
        return followed

    def thread(self, number: int) -> Followed:
        found = self.followed.get(number)
        if found is None:
            known = ", ".join(f"{one.number} ({one.session.label})" for one in self.followed.values()) or "none"
            raise UsageError(f"There is no thread {number}; there are: {known}.")
        return found

    def named(self, session: str) -> Followed | None:
        return next((one for one in self.followed.values() if one.name == session), None)

    def _see_engine(self) -> None:
        """Check the engine's process; when it has ended, report that once and terminate."""
        entry = None if self._engine is None else self._engine.entry
        if entry is None or self._lost or is_alive(entry):
            return
        self._lost = True
        sentence = f"The engine of {entry.identity} (process {entry.pid}) has ended; see its log with `djinn log`.\n"
        self.conversation.write(sentence, "stderr")
        self.terminated()

    @property
    def launched(self) -> bool:
        """True if the first session was launched here: its run begins and ends with this conversation."""
        return isinstance(self.plan, Launch)

    @property
    def follows_all(self) -> bool:
        return isinstance(self.plan, Attach) and self.plan.all_sessions

    def terminated(self) -> None:
        """Send `terminated`, at most once."""
        if not self._terminated:
            self._terminated = True
            self.conversation.tell("terminated")

    @property
    def clock(self) -> float:
        return time.monotonic()


def _asked(message: dict[str, Any]) -> Asked | None:
    number, command = message.get("seq"), message.get("command")
    if message.get("type") != "request" or not isinstance(number, int) or not isinstance(command, str):
        return None
    return Asked(number=number, command=command, arguments=message.get("arguments"))
