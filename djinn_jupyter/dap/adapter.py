"""The adapter of one client: builds the parts, and handles requests, engine events and outcomes of moves in one order,
on one thread.

`receive` may be called from any thread; `run` handles queued work until the conversation is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from djinn_jupyter.client.engines.registry import is_alive
from djinn_jupyter.dap.breakpoint_requests import BreakpointCommands
from djinn_jupyter.dap.containers import References
from djinn_jupyter.dap.debuggee import Debuggee, InUse
from djinn_jupyter.dap.engine_events import EngineEvents
from djinn_jupyter.dap.execution import Execution
from djinn_jupyter.dap.frames import Frames
from djinn_jupyter.dap.handles import CommandHandlers
from djinn_jupyter.dap.inspection import Inspection
from djinn_jupyter.dap.lifecycle import AdapterLifecycle
from djinn_jupyter.dap.port_access import PortAccess
from djinn_jupyter.dap.protocol import Client, Message, Send, read_request
from djinn_jupyter.dap.repl import Repl
from djinn_jupyter.dap.reports import Reports
from djinn_jupyter.dap.sources import Sources
from djinn_jupyter.dap.work_queue import WorkQueue
from djinn_jupyter.errors import DjinnError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two checks that the engine's process is alive


class Adapter:
    """Numbers of threads, frames and variables start above those that another debugger in the same conversation
    uses. `access` is what a client on a port has to show."""

    def __init__(
        self,
        send: Send,
        *,
        first_thread: int = 1,
        first_frame: int = 1,
        first_reference: int = 1,
        in_use: InUse | None = None,
        access: PortAccess | None = None,
    ) -> None:
        self._access = access
        references, frames = References(first_reference), Frames(first_frame)
        self.queue, self.client = WorkQueue(), Client(send)
        self.debuggee = Debuggee(first_thread=first_thread, in_use=in_use)
        self.reports = Reports(self.client, self.debuggee, references, frames)
        self.execution = Execution(self.client, self.debuggee, self.reports, self.queue)
        self.events = EngineEvents(self.client, self.debuggee, self.execution, self.reports)
        repl = Repl(self.execution, self.reports)
        self.inspection = Inspection(self.client, self.debuggee, references, frames, self.reports, repl)
        self._lifecycle = AdapterLifecycle(
            self.client, self.debuggee, self.execution, self.reports, self.events, self.queue
        )
        breakpoints, sources = BreakpointCommands(self.client, self.debuggee), Sources(self.client, self.debuggee)
        self.handlers = CommandHandlers(self._lifecycle, self.execution, self.inspection, breakpoints, sources)
        self._lost = False

    # --- from any thread ---------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        self.queue.post(lambda: self._answer(message))

    def remark(self, text: str) -> None:
        """Write a remark of the adapter's own to the client's console."""
        self.queue.post(lambda: self.client.write(text, "stderr"))

    def end(self) -> None:
        """Leave the session after the client has gone."""
        self.queue.post(self._lifecycle.leave)

    # --- on the adapter's thread -------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.queue.over:
            self.step(LOOK_SECONDS)

    def step(self, seconds: float) -> None:
        """Do the next queued work, waiting at most `seconds`; without any, check the engine."""
        work = self.queue.take(seconds)
        if work is not None:
            self._do(work)
            return
        self._see_engine()

    def _do(self, work: Callable[[], None]) -> None:
        """Do queued work. A failure that answers no request is written to the client's console; the adapter goes on."""
        try:
            work()
        except DjinnError as error:
            self.client.write(f"{error}\n", "stderr")
        except Exception as error:  # the top of the adapter's thread
            log.exception("unforeseen")
            self.client.write(f"The adapter met an error it does not know ({error!r}).\n", "stderr")

    def _answer(self, message: Message) -> None:
        request = read_request(message)
        if request is None:
            self.client.write("A message that is no request was passed over.\n", "stderr")
            return
        try:
            if self._access is not None:
                self._access.check(request)
            body = self.handlers.answer(request)
        except DjinnError as error:
            self.client.refuse(request, error)
        except Exception as error:
            log.exception("unforeseen")
            self.client.refuse(request, DjinnError(f"The adapter met an error it does not know ({error!r})."))
        else:
            if body is not None:
                self.client.respond(request, body)

    def _see_engine(self) -> None:
        """Check the engine's process; when it has ended, report that once and terminate."""
        engine = self.debuggee.loaded
        entry = None if engine is None else engine.entry
        if entry is None or self._lost or is_alive(entry):
            return
        self._lost = True
        self.client.write(
            f"The engine of {entry.identity} (process {entry.pid}) has ended; see its log with `djinn log`.\n", "stderr"
        )
        self.client.terminated()
