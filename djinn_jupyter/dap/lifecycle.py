"""Requests that begin and end debugging: initialize, launch or attach, configurationDone, terminate, disconnect."""

from __future__ import annotations

from collections.abc import Callable

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Stop
from djinn_jupyter.dap import arguments, targets
from djinn_jupyter.dap.capabilities import CAPABILITIES
from djinn_jupyter.dap.debug_thread import state_of
from djinn_jupyter.dap.debuggee import Debuggee
from djinn_jupyter.dap.engine_events import EngineEvents
from djinn_jupyter.dap.execution import Execution
from djinn_jupyter.dap.handles import Body, handles
from djinn_jupyter.dap.protocol import Client, Request
from djinn_jupyter.dap.reports import Reports
from djinn_jupyter.dap.targets import Target
from djinn_jupyter.dap.work_queue import WorkQueue
from djinn_jupyter.described import chosen
from djinn_jupyter.errors import (
    DjinnError,
    EngineUnavailable,
    IllegalMove,
    SessionsWouldSuffer,
    UnknownSession,
    UsageError,
)
from djinn_jupyter.sampling import GivenSampling


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

    @handles("initialize", arguments.Initialize)
    def initialize(self, given: arguments.Initialize, request: Request) -> Body:
        self._client.capabilities = given
        return CAPABILITIES

    @handles("launch", arguments.Launch)
    def launch(self, given: arguments.Launch, request: Request) -> None:
        """Load the model, or find its engine, and open a session; its run starts at configurationDone."""
        if (given.prompt is None) == (given.tokens is None):
            raise UsageError("launch: give the prompt once, as `prompt` or as a list `tokens`.")
        self._set_about(given, request, lambda: targets.launched(given, self._progress))

    @handles("attach", arguments.Attach)
    def attach(self, given: arguments.Attach, request: Request) -> None:
        """Attach to a session of a running engine."""
        self._set_about(given, request, lambda: targets.attached(given))

    def _progress(self, line: str) -> None:
        self._queue.post(lambda: self._client.write(f"{line}\n"))

    def _set_about(
        self, plan: arguments.Launch | arguments.Attach, request: Request, job: Callable[[], Target]
    ) -> None:
        if self._debuggee.plan is not None:
            raise IllegalMove("This conversation debugs something already; start another one.")
        self._debuggee.plan = plan

        def opened(outcome: Target | DjinnError) -> None:
            self._opening = None
            try:
                if isinstance(outcome, DjinnError):
                    raise outcome
                self._begin(plan, request, outcome)
            except DjinnError as error:
                self._debuggee.plan = None
                self._debuggee.let_go()
                self._client.refuse(request, error)

        self._opening = request
        self._queue.run_beside(job, opened)

    def _begin(self, plan: arguments.Launch | arguments.Attach, request: Request, target: Target) -> None:
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
        for name in arguments.passed_over(type(plan), request.arguments):
            self._client.write(f"{request.command}: {name!r} means nothing here and was passed over.\n", "stderr")
        self._client.respond(request)
        self._client.tell("initialized")

    @handles("configurationDone")
    def configuration_done(self, given: arguments.Nothing, request: Request) -> None:
        first, plan = self._debuggee.first, self._debuggee.plan
        if isinstance(plan, arguments.Launch):
            if plan.stop_on_entry and not plan.no_debug:
                first.session.breakpoint("resid_pre.0", once=True)
            self._execution.set_off(first, None, "run", lambda session, _: _run(session, plan))
            self._client.respond(request)
            return
        self._client.respond(request)  # before the stops that exist already
        for thread in self._debuggee.threads.values():
            if thread.state == "paused":
                self._reports.show_stop(thread)

    # --- the end -----------------------------------------------------------------------------------------------------

    @handles("terminate")
    def terminate(self, given: arguments.Nothing, request: Request) -> Body:
        """End the session. The conversation goes on until the client disconnects."""
        self._close()
        self._client.terminated()
        return {}

    @handles("disconnect", arguments.Disconnect)
    def disconnect(self, given: arguments.Disconnect, request: Request) -> None:
        try:
            self.leave(given.terminate_debuggee)
        except DjinnError as error:
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
        except (EngineUnavailable, UnknownSession):
            pass  # the engine or the session has already ended
        finally:
            self._debuggee.let_go()

    def _refuse_unanswered(self) -> None:
        """Refuse the requests whose jobs go on: their outcomes are not taken from the queue any more."""
        moves = (thread.move for thread in self._debuggee.threads.values() if thread.move is not None)
        for request in (self._opening, *(move.request for move in moves)):
            if request is not None:
                self._client.refuse(request, IllegalMove("The client has left before this was done."))

    def _closes(self) -> bool:
        plan = self._debuggee.plan
        return isinstance(plan, arguments.Launch) and not plan.keep_session

    def _part(self, closes: bool) -> None:
        if closes:
            try:
                return self._close()
            except SessionsWouldSuffer:
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
        except UnknownSession:
            pass  # closed by another client


def _run(session: RemoteSession, plan: arguments.Launch) -> Stop:
    stop: Stop = session.run(
        plan.prompt if plan.tokens is None else list(plan.tokens),
        max_new_tokens=plan.max_new_tokens,
        stop=plan.stop,
        ignore_eos=plan.ignore_eos,
        chat=plan.chat,
        free=plan.no_debug,
        **chosen(GivenSampling, plan),
    )
    return stop
