"""The panel itself: which request is ours and which Python's, and which of our stops JupyterLab shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.magics.native_panel.bridge import FIRST_THREAD, Bridge, is_ours
from djinn_jupyter.magics.native_panel.kernel_debugger import KernelDebugger

if TYPE_CHECKING:
    from djinn_jupyter.dap.debug_thread import DebugThread
    from djinn_jupyter.magics.kernel_state import KernelState

MOVES: Final = frozenset({"continue", "next", "stepIn", "stepOut"})
Message = dict[str, Any]


class NativePanel:
    """On from `start` until `stop`. Follows the sessions that this kernel holds, and shows the one in use: JupyterLab
    shows one thread of those that stand, and presses Continue for the next. `_shown` is the one it was last told of,
    `_armed` are its breakpoints in our sources, by session and path, as it set them."""

    def __init__(self, state: KernelState) -> None:
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
        """Uncover ipykernel's debugger and leave the engine: nothing of the panel remains."""
        self._state.shell.events.unregister("post_run_cell", self._look)
        self._debugger.uncover()
        self._leave()

    # --- following what the notebook works with ----------------------------------------------------------------------

    def _look(self, result: object = None) -> None:
        """Go over, after a cell, to the engine and the sessions that the notebook works with now."""
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
        1, as they do whatever it shows."""
        meant = self._meant(bridge, command)
        if meant is not None and (given.get("threadId") or 0) < FIRST_THREAD:
            return {**given, "threadId": meant.number}
        return given

    def _meant(self, bridge: Bridge, command: str) -> DebugThread | None:
        """Return the thread that a Pause or Continue is for; None where Python itself stands at a breakpoint."""
        state = {"pause": "running", "continue": "paused"}.get(command)
        if self._debugger.is_stopped:
            return None
        thread = bridge.in_use
        return thread if thread is not None and thread.state == state else None

    def _with_ours(self, bridge: Bridge | None, reply: Message) -> Message:
        """Add to Python's state our thread, if it is stopped, and the breakpoints that were set in our source:
        JupyterLab forgets those that are left out."""
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
        """Publish stops of the session in use and their ends. Output belongs to cells, and while Python is stopped the
        panel is Python's."""
        if event == "terminated" or (event == "thread" and body["threadId"] == self._shown):
            self._clear()  # the engine has ended, or the session shown was closed
        elif event == "stopped" and self._debugger.is_stopped:
            return
        elif event in ("stopped", "continued") and self._concerns(body["threadId"]):
            self._publish(event, body)

    def _concerns(self, number: int) -> bool:
        """Return True for the thread that JupyterLab shows and for that of the session in use."""
        thread = None if self._bridge is None else self._bridge.in_use
        return number == self._shown or (thread is not None and number == thread.number)

    def _publish(self, event: str, body: Message) -> None:
        self._shown = body["threadId"] if event == "stopped" else None
        self._debugger.publish(event, body)
