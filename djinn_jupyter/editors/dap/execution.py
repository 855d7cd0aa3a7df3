"""Moves of the client: continue, step, go back, pause. The request is answered when the engine has accepted the move;
an event reports its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused, Stop
from djinn_jupyter.editors.dap.debuggee import Debuggee, DebugThread, MoveName, ThreadMove
from djinn_jupyter.editors.dap.protocol import Body, Client, OfThread, Request, handles
from djinn_jupyter.editors.dap.reports import Reports
from djinn_jupyter.errors import DjinnError, IllegalMove, UsageError
from djinn_jupyter.link.waiting import beside_debuggers
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class WorkQueue:
    """The work of one adapter, done in the order of its arrival on one thread; slow jobs run beside it. `over` is True
    after `close`: the adapter's thread ends after the work that it is doing."""

    def __init__(self) -> None:
        self.over = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work` for the adapter's thread. May be called from any thread."""
        self._inbox.put(work)

    def take(self, seconds: float) -> Callable[[], None] | None:
        """Return the next work, or None where there is none within `seconds`."""
        try:
            return self._inbox.get(timeout=seconds)
        except Empty:
            return None

    def close(self) -> None:
        self.over = True

    def run_beside(self, job: Callable[[], Result], then: Callable[[Result | DjinnError], None]) -> None:
        """Run a slow job on a thread of its own; `then` is called on the adapter's thread with its result or error."""

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


Verb = Callable[[RemoteSession, StopIdentity | None], Stop]  # given the session and the stop that the editor shows
ACCEPTED: Final[dict[str, dict[str, Any]]] = {
    "continue": {"allThreadsContinued": False},
    "evaluate": {"result": "", "variablesReference": 0},
}


class Execution:
    """One move at a time in each session."""

    def __init__(self, client: Client, debuggee: Debuggee, reports: Reports, queue: WorkQueue) -> None:
        self._client, self._debuggee, self._reports, self._queue = client, debuggee, reports, queue

    # --- what the client asks for ------------------------------------------------------------------------------------

    @handles("continue", OfThread)
    def resume(self, given: OfThread, request: Request) -> None:
        self._go_on(given, request, "continue", lambda session, seen: session.resume(stop=seen))

    @handles("next", OfThread)
    def next(self, given: OfThread, request: Request) -> None:
        self._go_on(given, request, "step", lambda session, seen: session.step(by="layer", stop=seen))

    @handles("stepIn", OfThread)
    def step_in(self, given: OfThread, request: Request) -> None:
        self._go_on(given, request, "step", lambda session, seen: session.step(by="point", stop=seen))

    @handles("stepOut", OfThread)
    def step_out(self, given: OfThread, request: Request) -> None:
        self._go_on(given, request, "step", lambda session, seen: session.step(by="token", stop=seen))

    @handles("stepBack", OfThread)
    def step_back(self, given: OfThread, request: Request) -> None:
        """Go back one stop, also from the end of a run, where nothing is stopped."""
        self.begin(self._debuggee.thread(given.thread_id), request, "back", _back)

    @handles("reverseContinue", OfThread)
    def reverse_continue(self, given: OfThread, request: Request) -> None:
        self.begin(self._debuggee.thread(given.thread_id), request, "back", _back_to_breakpoint)

    @handles("pause", OfThread)
    def pause(self, given: OfThread, request: Request) -> Body:
        session = self._debuggee.thread(given.thread_id).session
        if not session.pause():
            raise IllegalMove(f"Session {in_quotes(session.label)} is not running, so there is nothing to pause.")
        return {}

    def _go_on(self, given: OfThread, request: Request, name: MoveName, verb: Verb) -> None:
        self.go_on(self._debuggee.thread(given.thread_id), request, name, verb)

    # --- a move, from its request to its end -------------------------------------------------------------------------

    def go_on(self, thread: DebugThread, request: Request | None, name: MoveName, verb: Verb) -> None:
        """Start a move from a stop."""
        thread.require_stopped()
        self.begin(thread, request, name, verb)

    def begin(self, thread: DebugThread, request: Request | None, name: MoveName, verb: Verb) -> None:
        """Start a move and return at once. IllegalMove while another move is in progress."""
        if thread.move is not None:
            raise IllegalMove(f"Session {in_quotes(thread.session.label)} is running; pause it first.")
        move, seen = ThreadMove(name=name, request=request), thread.seen
        thread.move = move
        self._queue.run_beside(lambda: verb(thread.session, seen), lambda outcome: self._replied(thread, move, outcome))

    def accept(self, thread: DebugThread, move: ThreadMove) -> None:
        """Answer a move that the engine has accepted, and drop the variables shown of the stop that it left."""
        request, move.request = move.request, None
        self._reports.left(thread)
        if request is not None:
            self._client.respond(request, ACCEPTED.get(request.command))

    def _replied(self, thread: DebugThread, move: ThreadMove, outcome: Stop | DjinnError) -> None:
        """Report the end of a move. The events of a move come before its reply, so all of them are handled."""
        if isinstance(outcome, DjinnError):
            self._failed(thread, move, outcome)
            return
        self.accept(thread, move)
        self._settle(thread, move, outcome)

    def _failed(self, thread: DebugThread, move: ThreadMove, error: DjinnError) -> None:
        """Report a failed move: refused before it began, the session keeps its stop; failed later, its run is over."""
        thread.move = None
        if move.request is not None:
            self._client.refuse(move.request, error)
        else:
            self._reports.failed(thread, str(error))

    def _settle(self, thread: DebugThread, move: ThreadMove, outcome: Stop) -> None:
        thread.move = None
        if isinstance(outcome, Finished):
            self._reports.finished(thread, outcome)
        elif move.name in ("run", "continue") and thread.breakpoint_record.passes_by(outcome):
            stop = outcome.reply.stop
            self.begin(thread, None, "continue", lambda session, _: session.resume(stop=stop))
        else:
            self._reports.stopped(thread, outcome)


def _back(session: RemoteSession, seen: StopIdentity | None) -> Paused:
    """Go back to the previous stop; from the oldest stop, one layer back in its pass."""
    present = session.history().present
    return session.back(1, by="stop" if present is None or present > 0 else "layer", stop=seen)


def _back_to_breakpoint(session: RemoteSession, seen: StopIdentity | None) -> Paused:
    """Go back to the last stop before this one at which a breakpoint was hit; UsageError if there is none."""
    history = session.history()
    here = len(history.stops) if history.present is None else history.present
    met = [stop.index for stop in history.stops[:here] if stop.reason == "breakpoint"]
    if not met:
        raise UsageError("No breakpoint was met before this stop; go back by steps.")
    return session.back(here - met[-1], stop=seen)
