"""One engine's adapter, asked from the kernel's control thread: requests go in as messages, replies come back as
futures. Follows the sessions that the kernel holds, and reads the values that have no command in the protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.connection.own_threads import beside_debuggers
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.dap.adapter import Adapter
from djinn_jupyter.dap.arguments import Attach
from djinn_jupyter.dap.debug_thread import DebugThread, state_of
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.magics.showing import look_at
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.replies import SessionEdited

if TYPE_CHECKING:
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.wire.replies import Event

FIRST_THREAD: Final = 2**40  # debugpy counts threads from 1
FIRST_FRAME: Final = 2**50  # debugpy's are a thousand times its threads, and what is added to them
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
    """`told` is called with the adapter's events, `answered` with command and thread of each request that succeeded;
    both on the adapter's thread."""

    def __init__(
        self,
        state: KernelState,
        engine: RemoteEngine,
        *,
        told: Callable[[str, Message], None],
        answered: Callable[[str, int], None],
    ) -> None:
        self.engine, self.tree = engine, ModelTree(engine.description, engine.modules())
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
        self._debuggee.plan = Attach()
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
        """Show where a session stands, if it is paused. On the adapter's thread."""
        if thread.state == "paused":
            self._reports.show_stop(thread)

    def _hear(self, event: Event) -> None:
        if self._debuggee.named(event.session) is None:
            self._follow_sessions()
        thread = self._debuggee.named(event.session)
        if isinstance(event, SessionEdited) and thread is not None and thread.look is not None:
            if thread.move is None and thread.look.identity != event.stop:
                self._reports.show_stop(thread)  # a stop that is told again is read again
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
        """Have the adapter answer a request of JupyterLab's, with these arguments."""
        number, answer = next(self._numbers), self._promised()
        self._waiting[number] = (message["command"], given.get("threadId", 0), answer)
        self._receive({"type": "request", "seq": number, "command": message["command"], "arguments": given})
        reply = await asyncio.wrap_future(answer)
        return {"type": "response", "command": message["command"], "body": {}, **reply, "request_seq": message["seq"]}

    async def picture(self, given: Message) -> Message:
        """Draw the value at the stop, or what went into a module around it."""
        return await self._done(lambda: self._picture(given))

    async def copy(self, given: Message) -> Message:
        """Bring the value into the notebook, as a numpy array."""
        return await self._done(lambda: self._copy(given))

    def _run(self, work: Callable[[], None]) -> None:
        """Do the adapter's work; refuse what it leaves, as the kernel reads no further request before each reply."""
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
        look = look_at(thread.session, site, ahead=False)
        thread.stopped.check(look.stop)
        return {"data": views.snapshot_view(look)._repr_mimebundle_(), "metadata": {}}

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
