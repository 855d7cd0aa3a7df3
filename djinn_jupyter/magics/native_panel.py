"""JupyterLab's own debugger shows a stopped forward pass: the adapter of `djinn_jupyter.dap` answers what is asked of
our threads, frames and variables, ipykernel's debugger all else.

Which is whose is told by the numbers alone: ours begin where Python's debugger never comes. Knows ipykernel only by
what it is handed: the kernel of the shell.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.connection.io_thread import beside_debuggers
from djinn_jupyter.dap import looking, moving
from djinn_jupyter.dap.adapter import Adapter
from djinn_jupyter.dap.arguments import Attach, Initialize
from djinn_jupyter.dap.followed import Followed, state_of
from djinn_jupyter.dap.tree import Enclosing, ModelTree
from djinn_jupyter.errors import DjinnError, MissingDependency, UsageError
from djinn_jupyter.magics.lazily import views
from djinn_jupyter.magics.showing import look_of
from djinn_jupyter.wire.replies import SessionEdited

if TYPE_CHECKING:
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.wire.replies import Event

KNOWN: Final = ("7.4.",)  # versions of ipykernel whose control channel this was tested with
FIRST_THREAD: Final = 2**40  # debugpy counts threads from 1; a frame is a thousand times its thread
FIRST_FRAME: Final = FIRST_THREAD * looking.FRAMES_A_THREAD
FIRST_REFERENCE: Final = 2**52  # debugpy's are small, or addresses of objects: 47 bits
MOVES: Final = frozenset({"continue", "next", "stepIn", "stepOut"})
Message = dict[str, Any]


class NativePanel:
    """On from `start` until `stop`. Follows the sessions that this kernel holds, and shows the one in use: JupyterLab
    shows one thread of those that stand, and presses Continue for the next. `_shown` is the one it was last told of,
    `_armed` are its breakpoints in our sources, by session and path, as it set them."""

    def __init__(self, state: KernelState) -> None:
        self._state = state
        self._kernel = _known_kernel(state.shell)
        self._passed: Callable[[Message], Awaitable[Message]] = self._kernel.do_debug_request
        self._adapter: Adapter | None = None
        self._numbers = count(1)
        self._waiting: dict[int, tuple[str, int, Future[Message]]] = {}
        self._shown: int | None = None
        self._armed: dict[tuple[str, str], list[Message]] = {}

    def start(self) -> None:
        self._kernel.do_debug_request = self._answer
        self._state.shell.events.register("post_run_cell", self._look)
        self._look()

    def stop(self) -> None:
        """As if it had never been on."""
        self._state.shell.events.unregister("post_run_cell", self._look)
        del self._kernel.do_debug_request
        self._leave()

    # --- following what the notebook works with ----------------------------------------------------------------------

    def _look(self, result: object = None) -> None:
        """After a cell: is it another engine now, are there other sessions?"""
        engine = self._state.loaded
        if engine is None or self._adapter is None or self._adapter.engine.channel is not engine.channel:
            self._leave()
        if engine is not None and self._adapter is None:
            self._follow_engine()
        if self._adapter is not None:
            adapter = self._adapter
            adapter.post(lambda: self._follow_sessions(adapter))
            adapter.post(lambda: self._show_in_use(adapter))

    def _follow_engine(self) -> None:
        engine = self._state.engine
        adapter = Adapter(
            self._say, first_thread=FIRST_THREAD, first_reference=FIRST_REFERENCE, in_use=self._name_in_use
        )
        adapter.client, adapter.plan = Initialize(supports_variable_paging=False), Attach()
        tree = ModelTree(engine.description, engine.modules())
        adapter.work_with(engine, tree, lambda event: self._hear(adapter, event))
        beside_debuggers(threading.Thread(target=adapter.run, name="djinn-debugger", daemon=True)).start()
        self._adapter = adapter

    def _hear(self, adapter: Adapter, event: Event) -> None:
        if adapter.named(event.session) is None:
            self._follow_sessions(adapter)
        one = adapter.named(event.session)
        if isinstance(event, SessionEdited) and one is not None and one.look is not None:
            if one.move is None and one.look.identity != event.stop:
                moving.show_stop(adapter, one)  # a stop that is told again is read again
            return
        moving.hear(adapter, event)

    def _follow_sessions(self, adapter: Adapter) -> None:
        """On the adapter's thread: the sessions held here that are not followed yet; a stop of theirs is shown."""
        missing = [session for session in tuple(self._state.held.values()) if adapter.named(session.name) is None]
        states = {one.name: one for one in adapter.engine.sessions()} if missing else {}
        for session in missing:
            one = moving.follow_session(adapter, session)
            if session.name in states:
                one.state = state_of(states[session.name])
            if one.state == "paused":
                moving.show_stop(adapter, one)

    def _name_in_use(self) -> str | None:
        return self._state.present

    def _in_use(self, adapter: Adapter) -> Followed | None:
        """The session that the notebook's magics act on."""
        present = self._state.present
        return None if present is None else adapter.named(present)

    def _show_in_use(self, adapter: Adapter) -> None:
        """The notebook may have gone over to another session."""
        one = self._in_use(adapter)
        if self._shown is None or one is None or one.number != self._shown:
            self._clear()
            if one is not None and one.state == "paused":
                moving.show_stop(adapter, one)

    def _clear(self) -> None:
        if self._shown is not None:
            self._publish("continued", {"threadId": self._shown, "allThreadsContinued": False})

    def _leave(self) -> None:
        adapter, self._adapter = self._adapter, None
        self._armed.clear()
        if adapter is not None:
            self._clear()
            adapter.end()

    # --- what JupyterLab asks ----------------------------------------------------------------------------------------

    async def _answer(self, message: Message) -> Message:
        """One request of the control channel, on the control thread."""
        command, given = message.get("command"), message.get("arguments") or {}
        adapter = self._adapter
        if adapter is None or not self._is_ours(adapter, command, given):
            reply = await self._passed(message)
            return self._with_ours(adapter, reply) if command == "debugInfo" else reply
        if command == "richInspectVariables":
            body = await self._done(adapter, lambda: self._rich(adapter, given))
        elif command == "copyToGlobals":
            body = await self._done(adapter, lambda: self._copied(adapter, given))
        else:
            reply = await self._asked(adapter, message, self._aimed(adapter, str(command), given))
            if command == "setBreakpoints" and reply.get("success"):
                verified = [point for point in reply["body"]["breakpoints"] if point["verified"]]
                self._armed[self._state.present or "", given["source"]["path"]] = verified
            return reply
        return {"type": "response", "seq": message["seq"], "request_seq": message["seq"], "command": command, **body}

    def _is_ours(self, adapter: Adapter, command: str | None, given: Message) -> bool:
        if command in ("source", "setBreakpoints"):
            source = given.get("source") or {}
            return adapter.tree.means(source.get("name"), source.get("path"), source.get("sourceReference"))
        if command in ("pause", "continue") and self._meant(adapter, command) is not None:
            return True
        frame = given.get("frameId") or given.get("srcFrameId") or 0
        return (
            (given.get("threadId") or 0) >= FIRST_THREAD
            or frame >= FIRST_FRAME
            or (given.get("variablesReference") or 0) >= FIRST_REFERENCE
        )

    def _aimed(self, adapter: Adapter, command: str, given: Message) -> Message:
        """JupyterLab's Pause and Continue name thread 1 whatever it shows; then the session in use is meant."""
        meant = self._meant(adapter, command)
        if meant is not None and (given.get("threadId") or 0) < FIRST_THREAD:
            return {**given, "threadId": meant.number}
        return given

    def _meant(self, adapter: Adapter, command: str) -> Followed | None:
        """The pass that a Pause or Continue is for, unless Python itself stands at a breakpoint."""
        state = {"pause": "running", "continue": "paused"}.get(command)
        if self._kernel.debugger.stopped_threads:
            return None
        one = self._in_use(adapter)
        return one if one is not None and one.state == state else None

    async def _asked(self, adapter: Adapter, message: Message, given: Message) -> Message:
        number = next(self._numbers)
        answer: Future[Message] = Future()
        self._waiting[number] = (message["command"], given.get("threadId", 0), answer)
        adapter.receive({"type": "request", "seq": number, "command": message["command"], "arguments": given})
        reply = await asyncio.wrap_future(answer)
        return {"body": {}, **reply, "request_seq": message["seq"]}

    async def _done(self, adapter: Adapter, job: Callable[[], Message]) -> Message:
        """What has no command in the protocol, on the adapter's thread all the same."""
        done: Future[Message] = Future()

        def do() -> None:
            try:
                done.set_result({"success": True, "body": job()})
            except DjinnError as error:
                done.set_result({"success": False, "message": str(error), "body": {"data": {}, "metadata": {}}})

        adapter.post(do)
        return await asyncio.wrap_future(done)

    def _with_ours(self, adapter: Adapter | None, reply: Message) -> Message:
        """Python's state, our thread if it stands, and the breakpoints that were set in our source: what is not told
        here, JupyterLab takes for gone."""
        if adapter is None or not reply.get("success"):
            return reply
        body = dict(reply["body"])
        one = self._in_use(adapter)
        stopped = [one.number] if one is not None and one.state == "paused" else []
        body["stoppedThreads"] = [*body.get("stoppedThreads", []), *stopped]
        armed = [
            {"source": path, "breakpoints": points}
            for (session, path), points in self._armed.items()
            if points and session == self._state.present
        ]
        body["breakpoints"] = [*body.get("breakpoints", []), *armed]
        return {**reply, "body": body}

    # --- what a variable looks like ----------------------------------------------------------------------------------

    def _rich(self, adapter: Adapter, given: Message) -> Message:
        """The picture of the value at the stop, or of what went into a module around it."""
        one, site = self._site_of(adapter, given.get("variableName"), given.get("frameId") or 0)
        snapshot = looking.looked_at(one).snapshot(site)
        bundle = views.snapshot_view(look_of(one.session, snapshot))._repr_mimebundle_()
        return {"data": bundle, "metadata": {}}

    def _copied(self, adapter: Adapter, given: Message) -> Message:
        """The value as a numpy array in the notebook."""
        one, site = self._site_of(adapter, given.get("srcVariableName"), given.get("srcFrameId") or 0)
        name = str(given.get("dstVariableName"))
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not a name for a variable.")
        self._state.shell.push({name: looking.looked_at(one).snapshot(site).value})
        return {}

    def _site_of(self, adapter: Adapter, name: object, frame: int) -> tuple[Followed, str]:
        one, around = looking.framed(adapter, frame)
        if name != "value" or (around is not None and around.entry is None):
            raise UsageError(f"{name} has no picture; render `value`, the activation itself.")
        return one, _spelled(one, around)

    # --- what the adapter says ---------------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        if message["type"] == "event":
            self._pass_on(message["event"], message.get("body", {}))
            return
        command, thread, answer = self._waiting.pop(message["request_seq"])
        if message["success"] and command in MOVES and self._concerns(thread):
            self._publish("continued", {"threadId": thread, "allThreadsContinued": False})
        answer.set_result(message)

    def _pass_on(self, event: str, body: Message) -> None:
        """Stops of the session in use and their ends. Output belongs to cells, and while Python is stopped the panel is
        Python's."""
        if event == "terminated":
            self._clear()
        elif event == "stopped" and self._kernel.debugger.stopped_threads:
            return
        elif event in ("stopped", "continued") and self._concerns(body["threadId"]):
            self._publish(event, body)

    def _concerns(self, thread: int) -> bool:
        """Whether JupyterLab shows the thread, or should: that of the session in use."""
        one = None if self._adapter is None else self._in_use(self._adapter)
        return thread == self._shown or (one is not None and thread == one.number)

    def _publish(self, event: str, body: Message) -> None:
        """From the control thread, as ipykernel's own debugger does."""
        self._shown = body["threadId"] if event == "stopped" else None
        said = {"type": "event", "seq": 0, "event": event, "body": body}
        self._kernel.control_thread.io_loop.add_callback(self._kernel._publish_debug_event, said)


def _spelled(one: Followed, around: Enclosing | None) -> str:
    site = looking.looked_at(one).stop.site if around is None else around.entry
    assert site is not None
    return site


def _known_kernel(shell: Any) -> Any:
    """The kernel, where its way with debug requests is known; elsewhere it stays as it is and this says so."""
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
