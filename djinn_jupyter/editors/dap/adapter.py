"""The adapter of one client, and its breakpoints: at lines of the model, and by the names of sites."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from djinn_jupyter import errors, settings
from djinn_jupyter.api.names import digests_of, naming
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Stop
from djinn_jupyter.editors.dap import debuggee as targets
from djinn_jupyter.editors.dap import inspection, port_access, protocol, values
from djinn_jupyter.editors.dap.breakpoints import BreakpointKind, WantedBreakpoint, refused
from djinn_jupyter.editors.dap.debuggee import Debuggee, DebugThread, InUse, Target, state_of
from djinn_jupyter.editors.dap.execution import Execution, WorkQueue
from djinn_jupyter.editors.dap.protocol import (
    CAPABILITIES,
    Body,
    Client,
    CommandHandlers,
    Message,
    Request,
    Send,
    handles,
    read_request,
)
from djinn_jupyter.editors.dap.repl import Repl
from djinn_jupyter.editors.dap.reports import Reports
from djinn_jupyter.editors.dap.tree import REFERENCE, Frames
from djinn_jupyter.link.registry import is_alive
from djinn_jupyter.wire import replies
from djinn_jupyter.wire.nouns import SessionDescription


class BreakpointCommands:
    def __init__(self, client: Client, debuggee: Debuggee) -> None:
        self._client, self._debuggee = client, debuggee

    @handles("setBreakpoints", protocol.SetBreakpoints)
    def set_breakpoints(self, given: protocol.SetBreakpoints, request: Request) -> Body:
        tree = self._debuggee.tree
        if not tree.means(given.source.name, given.source.path, given.source.source_reference):
            message = f"Breakpoints stand in the lines of {tree.name}, the model; this is another source."
            return {"breakpoints": [refused(message) for _ in given.breakpoints]}
        return self._replace("source", [self._at_line(point) for point in given.breakpoints])

    @handles("setFunctionBreakpoints", protocol.SetFunctionBreakpoints)
    def set_function_breakpoints(self, given: protocol.SetFunctionBreakpoints, request: Request) -> Body:
        wanted = [
            WantedBreakpoint(site=point.name.strip() or "?", condition=point.condition, hits=point.hit_condition)
            for point in given.breakpoints
        ]
        return self._replace("function", wanted)

    @handles("setExceptionBreakpoints")
    def set_exception_breakpoints(self, given: protocol.Nothing, request: Request) -> Body:
        """Answer with an empty list: there are no exception breakpoints, but some editors send the request."""
        return {"breakpoints": []}

    def _at_line(self, point: protocol.SourceBreakpoint) -> WantedBreakpoint:
        try:
            _, site = self._debuggee.tree.site_at(self._client.from_line(point.line))
        except errors.DjinnError as error:
            return WantedBreakpoint(site=None, condition=None, hits=None, failure=error)
        return WantedBreakpoint(site=site, condition=point.condition, hits=point.hit_condition)

    def _replace(self, kind: BreakpointKind, wanted: list[WantedBreakpoint]) -> Body:
        thread = self._debuggee.aimed_at
        answers = thread.breakpoint_record.replace(thread.session, self._debuggee.tree, kind, wanted)
        return {"breakpoints": [self._spelled(thread, answer) for answer in answers]}

    def _spelled(self, thread: DebugThread, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the line as the client counts it, and with the name of the session that it stops where
        the client shows no threads."""
        if "line" in answer:
            answer = {**answer, "line": self._client.to_line(answer["line"])}
        if self._debuggee.names_sessions and answer["verified"]:
            answer = {**answer, "message": f"Stops session {thread.session.label}."}
        return answer


# The engine's events as the client sees them: the beginnings of its own moves, whose ends are their replies, and the
# moves of other clients. A notebook's run appears in the editor like the editor's own.


class EngineEvents:
    def __init__(self, client: Client, debuggee: Debuggee, execution: Execution, reports: Reports) -> None:
        self._client, self._debuggee, self._execution, self._reports = client, debuggee, execution, reports

    def hear(self, event: replies.Event) -> None:
        if isinstance(event, replies.EventsMissed):
            self._look_again()
            return
        thread = self._debuggee.named(event.session)
        if thread is None:
            if isinstance(event, replies.SessionOpened) and self._debuggee.follows_all:
                self._reports.started(RemoteSession(self._debuggee.engine.channel, event.session))
            return
        move = thread.move
        match event:
            case replies.TokenSampled() if event.text:
                self._client.write(event.text, "stdout")
            case replies.SessionRunning() if move is not None:
                self._execution.accept(thread, move)
            case replies.SessionRunning():
                self._reports.continued(thread)
            case replies.SessionPaused() | replies.SessionFinished() | replies.SessionFailed() if move is not None:
                pass  # its reply comes next
            case replies.SessionPaused():
                self._reports.show_stop(thread)
            case replies.SessionFinished():
                self._reports.over(thread, f"\n{thread.session.label} finished ({event.reason}).\n")
            case replies.SessionFailed():
                self._reports.over(thread, f"{event.message}\n", "stderr")
            case replies.RuleRefused(number=number, message=message):
                self._client.write(f"Rule {number} could not be applied: {message} The run goes on.\n", "stderr")
            case replies.SessionEdited(stop=stop):
                self._reports.edited_elsewhere(thread, stop)
            case replies.SessionClosed():
                self._reports.closed(thread)

    def _look_again(self) -> None:
        """Show each session as it is now. A move in progress here is left to its reply."""
        there = {one.name: one for one in self._debuggee.engine.sessions()}
        for thread in tuple(self._debuggee.threads.values()):
            described = there.pop(thread.name, None)
            if described is None:
                self._reports.closed(thread)
            elif thread.move is None:
                self._show(thread, described)
        if self._debuggee.follows_all:
            for name, described in there.items():
                self._show(self._reports.started(RemoteSession(self._debuggee.engine.channel, name)), described)

    def _show(self, thread: DebugThread, described: SessionDescription) -> None:
        """Report what a session does now, if the client was shown something else."""
        state = state_of(described)
        if state == thread.state and described.stop == thread.seen:
            return
        match state:
            case "running":
                self._reports.continued(thread)
            case "paused":
                self._reports.show_stop(thread)
            case "idle":
                self._reports.over(thread, f"\nThe run of {thread.session.label} is over.\n")


# Requests that begin and end debugging: initialize, launch or attach, configurationDone, terminate, disconnect.


class AdapterLifecycle:
    def __init__(
        self,
        client: Client,
        debuggee: Debuggee,
        execution: Execution,
        reports: Reports,
        events: EngineEvents,
        queue: WorkQueue,
    ) -> None:
        self._client, self._debuggee, self._execution = client, debuggee, execution
        self._reports, self._events, self._queue = reports, events, queue
        self._opening: Request | None = None  # a launch or attach that is not answered yet

    # --- the beginning -----------------------------------------------------------------------------------------------

    @handles("initialize", protocol.Initialize)
    def initialize(self, given: protocol.Initialize, request: Request) -> Body:
        self._client.capabilities = given
        return CAPABILITIES

    @handles("launch", protocol.Launch)
    def launch(self, given: protocol.Launch, request: Request) -> None:
        """Load the model, or find its engine, and open a session; its run starts at configurationDone."""
        if (given.prompt is None) == (given.tokens is None):
            raise errors.UsageError("launch: give the prompt once, as `prompt` or as a list `tokens`.")
        self._set_about(given, request, lambda: targets.launched(given, self._progress))

    @handles("attach", protocol.Attach)
    def attach(self, given: protocol.Attach, request: Request) -> None:
        """Attach to a session of a running engine."""
        self._set_about(given, request, lambda: targets.attached(given))

    def _progress(self, line: str) -> None:
        self._queue.post(lambda: self._client.write(f"{line}\n"))

    def _set_about(self, plan: protocol.Launch | protocol.Attach, request: Request, job: Callable[[], Target]) -> None:
        if self._debuggee.plan is not None:
            raise errors.IllegalMove("This conversation debugs something already; start another one.")
        self._debuggee.plan = plan

        def opened(outcome: Target | errors.DjinnError) -> None:
            self._opening = None
            try:
                if isinstance(outcome, errors.DjinnError):
                    raise outcome
                self._begin(plan, request, outcome)
            except errors.DjinnError as error:
                self._debuggee.plan = None
                self._debuggee.let_go()
                self._client.refuse(request, error)

        self._opening = request
        self._queue.run_beside(job, opened)

    def _begin(self, plan: protocol.Launch | protocol.Attach, request: Request, target: Target) -> None:
        engine, tree, session = target
        debuggee = self._debuggee
        debuggee.work_with(engine, tree, lambda event: self._queue.post(lambda: self._events.hear(event)))
        states = {one.name: one for one in engine.sessions()}
        debuggee.follow(session)
        if debuggee.follows_all:
            for name in sorted(states.keys() - {session.name}):
                self._reports.started(RemoteSession(engine.channel, name))
        for thread in debuggee.threads.values():
            if thread.name in states:
                thread.state = state_of(states[thread.name])
        for name in protocol.passed_over(type(plan), request.arguments):
            self._client.write(f"{request.command}: {name!r} means nothing here and was passed over.\n", "stderr")
        self._client.respond(request)
        self._client.send_event("initialized")

    @handles("configurationDone")
    def configuration_done(self, given: protocol.Nothing, request: Request) -> None:
        first, plan = self._debuggee.first, self._debuggee.plan
        if isinstance(plan, protocol.Launch):
            if plan.stop_on_entry and not plan.no_debug:
                first.session.breakpoint("resid_pre.0", once=True)
            self._execution.begin(first, None, "run", lambda session, _: _run(session, plan))
            self._client.respond(request)
            return
        self._client.respond(request)  # before the stops that exist already
        for thread in self._debuggee.threads.values():
            if thread.state == "paused":
                self._reports.show_stop(thread)

    # --- the end -----------------------------------------------------------------------------------------------------

    @handles("terminate")
    def terminate(self, given: protocol.Nothing, request: Request) -> Body:
        """End the session. The conversation goes on until the client disconnects."""
        self._close()
        self._client.terminated()
        return {}

    @handles("disconnect", protocol.Disconnect)
    def disconnect(self, given: protocol.Disconnect, request: Request) -> None:
        try:
            self.leave(given.terminate_debuggee)
        except errors.DjinnError as error:
            self._client.refuse(request, error)
        else:
            self._client.respond(request)

    def leave(self, terminate: bool | None = None) -> None:
        """End the conversation. By default a launched session is closed (unless `keep_session`) and an attached session
        stays, without the editor's breakpoints; `terminate` overrides this."""
        self._queue.close()
        self._refuse_unanswered()
        try:
            if self._debuggee.threads:
                self._part(self._closes() if terminate is None else terminate)
        except (errors.EngineUnavailable, errors.UnknownSession):
            pass  # the engine or the session has already ended
        finally:
            self._debuggee.let_go()

    def _refuse_unanswered(self) -> None:
        """Refuse the requests whose jobs go on: their outcomes are not taken from the queue any more."""
        moves = (thread.move for thread in self._debuggee.threads.values() if thread.move is not None)
        for request in (self._opening, *(move.request for move in moves)):
            if request is not None:
                self._client.refuse(request, errors.IllegalMove("The client has left before this was done."))

    def _closes(self) -> bool:
        plan = self._debuggee.plan
        return isinstance(plan, protocol.Launch) and not plan.keep_session

    def _part(self, closes: bool) -> None:
        if closes:
            try:
                return self._close()
            except errors.SessionsWouldSuffer:
                self._part(closes=False)  # it stays, without the editor's breakpoints
                raise
        for thread in self._debuggee.threads.values():
            thread.breakpoint_record.clear(thread.session)
        if self._debuggee.launched:
            self._debuggee.first.session.detach()

    def _close(self) -> None:
        plan = self._debuggee.plan
        try:
            self._debuggee.first.session.close(force=plan is not None and plan.force)
        except errors.UnknownSession:
            pass  # closed by another client


def _run(session: RemoteSession, plan: protocol.Launch) -> Stop:
    stop: Stop = session.run(
        plan.prompt if plan.tokens is None else list(plan.tokens),
        max_new_tokens=plan.max_new_tokens,
        stop=plan.stop,
        ignore_eos=plan.ignore_eos,
        chat=plan.chat,
        free=plan.no_debug,
        **settings.chosen(settings.GivenSampling, plan),
    )
    return stop


# The model as the one source: its text, and the lines at which a breakpoint can be set.


class Sources:
    def __init__(self, client: Client, debuggee: Debuggee) -> None:
        self._client, self._debuggee = client, debuggee

    @handles("source", protocol.ReadSource)
    def source(self, given: protocol.ReadSource, request: Request) -> Body:
        wanted, tree = given.source or protocol.Source(), self._debuggee.tree
        if not tree.means(wanted.name, wanted.path, given.source_reference or wanted.source_reference):
            raise errors.UsageError(f"The only source is {tree.name}, the model (reference {REFERENCE}).")
        return {"content": tree.text, "mimeType": "text/plain"}

    @handles("loadedSources")
    def loaded_sources(self, given: protocol.Nothing, request: Request) -> Body:
        return {"sources": [self._debuggee.tree.source]}

    @handles("breakpointLocations", protocol.BreakpointLocations)
    def breakpoint_locations(self, given: protocol.BreakpointLocations, request: Request) -> Body:
        tree = self._debuggee.tree
        if not tree.means(given.source.name, given.source.path, given.source.source_reference):
            return {"breakpoints": []}
        first, last = (self._client.from_line(line) for line in (given.line, given.end_line or given.line))
        lines = range(max(first, 1), min(last, len(tree.rows)) + 1)
        sites = [line for line in lines if tree.rows[line - 1].site is not None]
        return {"breakpoints": [{"line": self._client.to_line(line)} for line in sites]}


# The adapter of one client: builds the parts, and handles requests, engine events and outcomes of moves in one order,
# on one thread. `receive` may be called from any thread; `run` handles queued work until the conversation is over.

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
        access: port_access.PortAccess | None = None,
    ) -> None:
        self._access = access
        references, frames = values.References(first_reference), Frames(first_frame)
        self.queue, self.client = WorkQueue(), Client(send)
        self.debuggee = Debuggee(first_thread=first_thread, in_use=in_use)
        self.reports = Reports(self.client, self.debuggee, references, frames)
        self.execution = Execution(self.client, self.debuggee, self.reports, self.queue)
        self.events = EngineEvents(self.client, self.debuggee, self.execution, self.reports)
        repl = Repl(self.execution, self.reports)
        self.inspection = inspection.Inspection(self.client, self.debuggee, references, frames, self.reports, repl)
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
        """Write a remark of the adapter to the client's console."""
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
        engine = self.debuggee.loaded
        try:
            with naming(None if engine is None else digests_of(engine.channel)):
                work()
        except errors.DjinnError as error:
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
        except errors.DjinnError as error:
            self.client.refuse(request, error)
        except Exception as error:
            log.exception("unforeseen")
            self.client.refuse(request, errors.DjinnError(f"The adapter met an error it does not know ({error!r})."))
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
