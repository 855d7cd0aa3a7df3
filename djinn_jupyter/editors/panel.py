"""One engine's adapter, called from the kernel's control thread: requests go in as messages, replies come back as
futures. Follows the sessions that the kernel holds, and reads values for which the protocol has no command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from typing import Any, Final

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap import protocol, tree
from djinn_jupyter.editors.dap.adapter import Adapter
from djinn_jupyter.editors.dap.debuggee import DebugThread, state_of
from djinn_jupyter.errors import DjinnError, MissingDependency, UsageError
from djinn_jupyter.link.waiting import beside_debuggers
from djinn_jupyter.magics import kernel_state, looking
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.replies import Event, SessionEdited

FIRST_THREAD: Final = 2**40  # debugpy counts threads from 1
FIRST_FRAME: Final = 2**50  # debugpy's are a thousand times its threads, plus an offset
FIRST_REFERENCE: Final = 2**52  # debugpy's are small, or addresses of objects: 47 bits
LEFT: Final = "The debugger panel has left this engine."
Message = dict[str, Any]


def is_ours(given: Message) -> bool:
    """Return True where a request names one of our threads, frames or variables."""
    frame = given.get("frameId") or given.get("srcFrameId") or 0
    return (
        (given.get("threadId") or 0) >= FIRST_THREAD
        or frame >= FIRST_FRAME
        or (given.get("variablesReference") or 0) >= FIRST_REFERENCE
    )


class Bridge:
    """`told` is called with the adapter's events, `answered` with command and thread of each successful request; both
    on the adapter's thread."""

    def __init__(
        self,
        state: kernel_state.KernelState,
        engine: RemoteEngine,
        *,
        told: Callable[[str, Message], None],
        answered: Callable[[str, int], None],
    ) -> None:
        self.engine, self.tree = engine, tree.ModelTree(engine.description, engine.modules())
        self._state, self._told, self._answered = state, told, answered
        self._numbers = count(1)
        self._waiting: dict[int, tuple[str, int, Future[Message]]] = {}
        self._unanswered: set[Future[Message]] = set()
        self._ending, self._over = threading.Lock(), False
        adapter = Adapter(
            self._take,
            first_thread=FIRST_THREAD,
            first_frame=FIRST_FRAME,
            first_reference=FIRST_REFERENCE,
            in_use=lambda: state.present,
        )
        self._debuggee, self._reports, self._events = adapter.debuggee, adapter.reports, adapter.events
        self._inspection, self._receive, self.end = adapter.inspection, adapter.receive, adapter.end
        self._post = adapter.queue.post
        self._debuggee.plan = protocol.Attach()
        self._debuggee.work_with(engine, self.tree, lambda event: self._post(lambda: self._hear(event)))
        thread = threading.Thread(target=self._run, args=(adapter.run,), name="djinn-debugger", daemon=True)
        beside_debuggers(thread).start()

    # --- the sessions that this kernel holds -------------------------------------------------------------------------

    @property
    def in_use(self) -> DebugThread | None:
        """The session that the notebook's magics act on."""
        present = self._state.present
        return None if present is None else self._debuggee.named(present)

    def follow(self, then: Callable[[], None]) -> None:
        """Follow the sessions that are new here, and show their stops; `then` is called on the adapter's thread."""
        self._post(self._follow_sessions)
        self._post(then)

    def show(self, thread: DebugThread) -> None:
        """Show a session's stop, if it is paused. On the adapter's thread."""
        if thread.state == "paused":
            self._reports.show_stop(thread)

    def _hear(self, event: Event) -> None:
        if self._debuggee.named(event.session) is None:
            self._follow_sessions()
        thread = self._debuggee.named(event.session)
        if isinstance(event, SessionEdited) and thread is not None and thread.look is not None:
            if thread.move is None and thread.look.identity != event.stop:
                self._reports.show_stop(thread)  # a stop that is reported again is read again
            return
        self._events.hear(event)

    def _follow_sessions(self) -> None:
        held = tuple(self._state.held.values())
        missing = [session for session in held if self._debuggee.named(session.name) is None]
        states = {one.name: one for one in self.engine.sessions()} if missing else {}
        for session in missing:
            thread = self._reports.started(session)
            if session.name in states:
                thread.state = state_of(states[session.name])
            self.show(thread)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, message: Message, given: Message) -> Message:
        """Let the adapter answer a request of JupyterLab's, with these arguments."""
        number, answer = next(self._numbers), self._promised()
        self._waiting[number] = (message["command"], given.get("threadId", 0), answer)
        self._receive({"type": "request", "seq": number, "command": message["command"], "arguments": given})
        reply = await asyncio.wrap_future(answer)
        return {"type": "response", "command": message["command"], "body": {}, **reply, "request_seq": message["seq"]}

    async def picture(self, given: Message) -> Message:
        """Draw the value at the stop, or the input of a module around it."""
        return await self._done(lambda: self._picture(given))

    async def copy(self, given: Message) -> Message:
        """Bring the value into the notebook, as a numpy array."""
        return await self._done(lambda: self._copy(given))

    def _run(self, work: Callable[[], None]) -> None:
        """Do the adapter's work; refuse the rest at its end, as the kernel reads nothing before each reply."""
        work()
        with self._ending:
            self._over = True
        for answer in tuple(self._unanswered):
            answer.set_result(_refused(LEFT))

    def _promised(self) -> Future[Message]:
        """Return the future of a reply: a refusal where the adapter has ended."""
        answer: Future[Message] = Future()
        with self._ending:
            if self._over:
                answer.set_result(_refused(LEFT))
            else:
                self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return answer

    def _take(self, message: Message) -> None:
        if message["type"] == "event":
            self._told(message["event"], message.get("body", {}))
            return
        command, thread, answer = self._waiting.pop(message["request_seq"])
        if message["success"]:
            self._answered(command, thread)
        answer.set_result(message)

    async def _done(self, job: Callable[[], Message]) -> Message:
        """Do a job on the adapter's thread."""
        done = self._promised()

        def do() -> None:
            try:
                done.set_result({"success": True, "body": job()})
            except DjinnError as error:
                done.set_result(_refused(str(error)))
            except Exception as error:  # noqa: BLE001  JupyterLab waits for an answer, and the adapter's thread goes on
                done.set_result(_refused(f"The debugger panel met an error it does not know ({error!r})."))

        self._post(do)
        return await asyncio.wrap_future(done)

    def _picture(self, given: Message) -> Message:
        thread, site = self._site_of(given.get("variableName"), given.get("frameId") or 0)
        look = looking.look_at(thread.session, site, ahead=False)
        thread.stopped.check(look.stop)
        return {"data": replace(views.snapshot_view(look), pictures=None)._repr_mimebundle_(), "metadata": {}}

    def _copy(self, given: Message) -> Message:
        thread, site = self._site_of(given.get("srcVariableName"), given.get("srcFrameId") or 0)
        name = str(given.get("dstVariableName"))
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not a name for a variable.")
        self._state.shell.push({name: thread.stopped.whole(site)})
        return {}

    def _site_of(self, name: object, frame: int) -> tuple[DebugThread, str]:
        """Return the thread and the site whose value a frame's variable is."""
        thread, around = self._inspection.framed(frame)
        site = thread.stopped.stop.site if around is None else around.entry
        if name != "value" or site is None:
            raise UsageError(f"{name} has no picture; render `value`, the activation itself.")
        return thread, site


def _refused(sentence: str) -> Message:
    return {"success": False, "message": sentence, "body": {"data": {}, "metadata": {}}}


# ipykernel's debugger: where its requests come in, and where its events go out. All private names of ipykernel are used
# here.

KNOWN: Final = ("7.4.",)  # versions of ipykernel whose control channel this was tested with
Answer = Callable[[Message], Awaitable[Message]]


class KernelDebugger:
    """The debugger of a shell's kernel. MissingDependency where there is none, or one of an unknown version."""

    def __init__(self, shell: Any) -> None:
        self._kernel = _known_kernel(shell)
        self.answer: Answer = self._kernel.do_debug_request  # Python's own, also while it is covered

    @property
    def is_stopped(self) -> bool:
        """True while Python itself is stopped at a breakpoint."""
        return bool(self._kernel.debugger.stopped_threads)

    def cover(self, answer: Answer) -> None:
        """Answer the requests of the control channel in its place, on the control thread."""
        self._kernel.do_debug_request = answer

    def uncover(self) -> None:
        del self._kernel.do_debug_request

    def publish(self, event: str, body: Message) -> None:
        """Send an event to JupyterLab from the control thread, as ipykernel's own debugger does."""
        said = {"type": "event", "seq": 0, "event": event, "body": body}
        self._kernel.control_thread.io_loop.add_callback(self._kernel._publish_debug_event, said)


def _known_kernel(shell: Any) -> Any:
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(kernel, "debugger", None) is None:
        raise MissingDependency(
            "The debugger panel needs a Jupyter kernel with ipykernel's debugger; there is none here."
        )
    if not version("ipykernel").startswith(KNOWN):
        known = ", ".join(f"{one}x" for one in KNOWN)
        raise MissingDependency(
            f"The debugger panel is known to work with ipykernel {known}; it stays off with {version('ipykernel')}."
        )
    return kernel


# The panel itself: which requests are ours and which Python's, and which of our stops JupyterLab shows.

MOVES: Final = frozenset({"continue", "next", "stepIn", "stepOut"})


class NativePanel:
    """On from `start` until `stop`. Follows the sessions that this kernel holds, and shows the one in use: JupyterLab
    shows one stopped thread, and presses Continue for the next. `_shown` is the last reported one, `_armed` are its
    breakpoints in our sources, by session and path, as it set them."""

    def __init__(self, state: kernel_state.KernelState) -> None:
        self._state = state
        self._debugger = KernelDebugger(state.shell)
        self._bridge: Bridge | None = None
        self._shown: int | None = None
        self._armed: dict[tuple[str, str], list[Message]] = {}

    def start(self) -> None:
        self._debugger.cover(self._answer)
        self._state.shell.events.register("post_run_cell", self._look)
        self._look()

    def stop(self) -> None:
        """Uncover ipykernel's debugger and leave the engine, so that nothing of the panel remains."""
        self._state.shell.events.unregister("post_run_cell", self._look)
        self._debugger.uncover()
        self._leave()

    # --- following what the notebook works with ----------------------------------------------------------------------

    def _look(self, result: object = None) -> None:
        """Switch, after a cell, to the engine and the sessions that the notebook uses now."""
        engine = self._state.loaded
        if engine is None or self._bridge is None or self._bridge.engine.channel is not engine.channel:
            self._leave()
        if engine is not None and self._bridge is None:
            self._bridge = Bridge(self._state, engine, told=self._pass_on, answered=self._moved)
        if self._bridge is not None:
            bridge = self._bridge
            bridge.follow(lambda: self._show_in_use(bridge))

    def _show_in_use(self, bridge: Bridge) -> None:
        """Show the session in use, where JupyterLab shows another one or none."""
        thread = bridge.in_use
        if self._shown is None or thread is None or thread.number != self._shown:
            self._clear()
            if thread is not None:
                bridge.show(thread)

    def _clear(self) -> None:
        if self._shown is not None:
            self._publish("continued", {"threadId": self._shown, "allThreadsContinued": False})

    def _leave(self) -> None:
        bridge, self._bridge = self._bridge, None
        self._armed.clear()
        if bridge is not None:
            self._clear()
            bridge.end()

    # --- what JupyterLab asks ----------------------------------------------------------------------------------------

    async def _answer(self, message: Message) -> Message:
        """Answer a request of the control channel, on the control thread."""
        command, given = message.get("command"), message.get("arguments") or {}
        bridge = self._bridge
        if bridge is None or not self._is_ours(bridge, command, given):
            reply = await self._debugger.answer(message)
            return self._with_ours(bridge, reply) if command == "debugInfo" else reply
        if command == "richInspectVariables":
            body = await bridge.picture(given)
        elif command == "copyToGlobals":
            body = await bridge.copy(given)
        else:
            return await self._asked(bridge, message, given)
        return {"type": "response", "seq": message["seq"], "request_seq": message["seq"], "command": command, **body}

    async def _asked(self, bridge: Bridge, message: Message, given: Message) -> Message:
        command = message["command"]
        reply = await bridge.ask(message, self._aimed(bridge, command, given))
        if command == "setBreakpoints" and reply.get("success"):
            verified = [point for point in reply["body"]["breakpoints"] if point["verified"]]
            self._armed[self._state.present or "", given["source"]["path"]] = verified
        return reply

    def _is_ours(self, bridge: Bridge, command: str | None, given: Message) -> bool:
        if command in ("source", "setBreakpoints"):
            source = given.get("source") or {}
            return bridge.tree.means(source.get("name"), source.get("path"), source.get("sourceReference"))
        if command in ("pause", "continue") and self._meant(bridge, command) is not None:
            return True
        return is_ours(given)

    def _aimed(self, bridge: Bridge, command: str, given: Message) -> Message:
        """Return the arguments, with the thread of the session in use where JupyterLab's Pause or Continue names thread
        1, as they always do."""
        meant = self._meant(bridge, command)
        if meant is not None and (given.get("threadId") or 0) < FIRST_THREAD:
            return {**given, "threadId": meant.number}
        return given

    def _meant(self, bridge: Bridge, command: str) -> DebugThread | None:
        """Return the thread that a Pause or Continue is for; None where Python itself is stopped at a breakpoint."""
        state = {"pause": "running", "continue": "paused"}.get(command)
        if self._debugger.is_stopped:
            return None
        thread = bridge.in_use
        return thread if thread is not None and thread.state == state else None

    def _with_ours(self, bridge: Bridge | None, reply: Message) -> Message:
        """Add our thread, if stopped, and the breakpoints in our source to Python's state: JupyterLab forgets
        others."""
        if bridge is None or not reply.get("success"):
            return reply
        body, thread = dict(reply["body"]), bridge.in_use
        stopped = [thread.number] if thread is not None and thread.state == "paused" else []
        body["stoppedThreads"] = [*body.get("stoppedThreads", []), *stopped]
        armed = [
            {"source": path, "breakpoints": points}
            for (session, path), points in self._armed.items()
            if points and session == self._state.present
        ]
        body["breakpoints"] = [*body.get("breakpoints", []), *armed]
        return {**reply, "body": body}

    # --- what the adapter says ---------------------------------------------------------------------------------------

    def _moved(self, command: str, thread: int) -> None:
        if command in MOVES and self._concerns(thread):
            self._publish("continued", {"threadId": thread, "allThreadsContinued": False})

    def _pass_on(self, event: str, body: Message) -> None:
        """Publish stops of the session in use and their ends. Output belongs to cells. A stopped Python keeps the
        panel."""
        if event == "terminated" or (event == "thread" and body["threadId"] == self._shown):
            self._clear()  # the engine has ended, or the session shown was closed
        elif event == "stopped" and self._debugger.is_stopped:
            return
        elif event in ("stopped", "continued") and self._concerns(body["threadId"]):
            self._publish(event, body)

    def _concerns(self, number: int) -> bool:
        """Return True for the thread that JupyterLab shows, and for the thread of the session in use."""
        thread = None if self._bridge is None else self._bridge.in_use
        return number == self._shown or (thread is not None and number == thread.number)

    def _publish(self, event: str, body: Message) -> None:
        self._shown = body["threadId"] if event == "stopped" else None
        self._debugger.publish(event, body)
