"""The verbs of an engine, for a person's code: what it serves, its sessions, its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from djinn_jupyter.client.line import Line, ask_for
from djinn_jupyter.client.memory_trace import MemoryTrace
from djinn_jupyter.client.naming import default_session_name
from djinn_jupyter.client.owning import is_held_elsewhere, require_all_own, require_own
from djinn_jupyter.client.registry import is_alive
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.transport import WireBytes
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import (
    CheckpointDescription,
    EngineStatistics,
    LayerCopy,
    ModelDescription,
    ModuleDescription,
    SessionDescription,
)
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.registry import Entry

END_SECONDS = 30.0


class RemoteEngine:
    """An engine that this process is attached to. `entry` is None on a line without a process behind it."""

    def __init__(self, line: Line, entry: Entry | None = None) -> None:
        self.line, self.entry = line, entry

    @property
    def description(self) -> ModelDescription:
        return self.line.welcome.model

    @property
    def holder(self) -> str:
        """The name by which the engine knows this kernel or process: the `holder` of our own sessions."""
        return self.line.holder

    @property
    def wire_bytes(self) -> WireBytes:
        """What crossed the wire between this process and the engine so far."""
        return self.line.wire_bytes

    def session(
        self, name: str | None = None, *, join: bool = False, fresh: bool = False, force: bool = False
    ) -> RemoteSession:
        """Open a session or attach to it; by default this notebook's. `join` enters one that another kernel holds,
        `fresh` forgets its tokens, breakpoints and rules first: those of another notebook's only with `force`."""
        chosen = name if name is not None else default_session_name()
        there = self._there(chosen) if fresh else None
        if there is not None and (join or not is_held_elsewhere(there, self.holder)):  # else it is not opened at all
            require_own(there, self.holder, "forget what it holds", force=force)
        opened = ask_for(self.line, ask.Open(session=chosen, join=join, fresh=fresh), replies.Opened)
        return RemoteSession(self.line, opened.session.name)

    def _there(self, name: str) -> SessionDescription | None:
        return next((one for one in self.sessions() if one.name == name), None)

    def sessions(self) -> tuple[SessionDescription, ...]:
        return ask_for(self.line, ask.ListSessions(), replies.Sessions).sessions

    def tree(self) -> tuple[Branch, ...]:
        """The stops of all sessions; forks have those that they share under the same numbers."""
        return ask_for(self.line, ask.ReadTree(), replies.Tree).branches

    def statistics(self) -> EngineStatistics:
        return ask_for(self.line, ask.ReadStatistics(), replies.Statistics).statistics

    def memory_trace(
        self,
        *,
        hertz: float = 4.0,
        seconds: float | None = None,
        heard: Callable[[MemoryTrace], None] = lambda trace: None,
    ) -> MemoryTrace:
        """Memory over time, sampled beside whatever else is done, until its `stop()`; `with` stops it too."""
        return MemoryTrace(self.line, hertz=hertz, seconds=seconds, heard=heard)

    def checkpoints(self) -> tuple[CheckpointDescription, ...]:
        """The checkpoints of this model that are kept in files, also those of earlier engines."""
        return ask_for(self.line, ask.ListCheckpoints(), replies.Checkpoints).checkpoints

    def restore(
        self, name: str, session: str | None = None, *, replace: bool = False, force: bool = False
    ) -> RemoteSession:
        """Open `session`, by default this notebook's, as it was when the checkpoint (by name, or a file's path) was
        saved. A session of that name is replaced only with `replace`, that of another notebook only with `force`
        besides. UnknownCheckpoint; CheckpointRefused for one of another model, or a damaged one."""
        chosen = session if session is not None else default_session_name()
        there = self._there(chosen) if replace else None
        if there is not None:
            require_own(there, self.holder, "restore over it", force=force)
        request = ask.RestoreCheckpoint(session=chosen, name=name, replace=replace, force=force)
        return RemoteSession(self.line, ask_for(self.line, request, replies.Opened).session.name)

    def drop_checkpoint(self, name: str) -> int:
        """Delete the file of a checkpoint; how many there were."""
        return ask_for(self.line, ask.DropCheckpoint(name=name), replies.Cleared).count

    def nap(self) -> replies.WeightsMoved:
        """The weights leave the device until the next request that needs them. IllegalMove while a session runs."""
        return ask_for(self.line, ask.Nap(), replies.WeightsMoved)

    def wake(self) -> replies.WeightsMoved:
        """Bring the weights back now; `seconds` is 0 when they were there."""
        return ask_for(self.line, ask.Wake(), replies.WeightsMoved)

    def copies(self, since: int = 0) -> tuple[LayerCopy, ...]:
        """Copies of streamed layers that have arrived, with higher numbers than `since`, oldest first; the last few
        thousand are kept."""
        return ask_for(self.line, ask.ReadCopies(since=since), replies.Copies).copies

    def tokenize(self, text: str, *, chat: bool = False) -> replies.Tokenized:
        return ask_for(self.line, ask.Tokenize(text=text, chat=chat), replies.Tokenized)

    def detokenize(self, tokens: object) -> str:
        from djinn_jupyter.client.arrays import token_ids

        return ask_for(self.line, ask.Detokenize(tokens=token_ids(tokens)), replies.Tokenized).text

    def modules(self) -> tuple[ModuleDescription, ...]:
        return ask_for(self.line, ask.ListModules(), replies.Modules).modules

    def ping(self) -> float:
        """Seconds of one round trip to the service."""
        begun = time.perf_counter()
        ask_for(self.line, ask.Ping(), replies.Pong)
        return time.perf_counter() - begun

    def stop(self, *, force: bool = False, forget: bool = False) -> tuple[str, ...]:
        """End the engine; the names of the sessions that end with it: with `forget` all of them, else none, for they
        come back when the model is loaded again. SessionsWouldSuffer when others hold some, or with `forget` when some
        are other notebooks', unless `force`. Returns when its process has gone."""
        if forget:
            require_all_own(self.sessions(), self.holder, force=force)
        lost = ask_for(self.line, ask.Shutdown(force=force, forget=forget), replies.ShuttingDown).sessions_lost
        if self.entry is not None:
            await_end(self.entry)
        return lost

    def __repr__(self) -> str:
        found = self.description
        return f"Engine {found.name} ({found.architecture}, {found.layers} layers, {found.dtype} on {found.device})"


def await_end(entry: Entry, seconds: float = END_SECONDS) -> None:
    """Return when the engine's process has gone; EngineUnavailable when it has not in time."""
    deadline = time.monotonic() + seconds
    while is_alive(entry):
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                f"The engine of {entry.identity} (process {entry.pid}) was told to end and has not within "
                f"{seconds:.0f} s; end it with `djinn stop --force`."
            )
        time.sleep(0.01)
