"""A record of the operations that an engine has acknowledged, and a check that the next engine has all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.wire.nouns import SessionDescription

Deed = Literal["move", "edit", "arm", "fork", "close"]
NEVER = "step == 900"
SITE = 7


@dataclass(slots=True)
class Diary:
    """Of one session: the last answer, and the operation requested and not answered (`under_way`). After a move that
    was not answered, `last` is the state in which the session was found."""

    name: str
    last: Paused | Finished | SessionDescription | None = None
    edits: int = 0
    armed: set[int] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    under_way: tuple[Deed, str] | None = None
    answered: int = 0

    # ------------------------------------------------------------------------------------------- while it works

    @contextmanager
    def asking(self, deed: Deed, what: str = "") -> Iterator[None]:
        self.under_way = (deed, what)
        yield
        self.under_way = None
        self.answered += 1

    def moved(self, stop: object) -> None:
        assert isinstance(stop, Paused | Finished)
        self.last, self.edits = stop, 0

    def arm(self, session: RemoteSession) -> None:
        with self.asking("arm"):
            self.armed.add(session.breakpoint(SITE, when=NEVER).number)

    def fork(self, session: RemoteSession) -> None:
        """Fork the session under a new name, and close the fork again."""
        name = f"{self.name} {len(self.closed)}"
        with self.asking("fork", name):
            made = session.fork(name)
            self.open.add(name)
        with self.asking("close", name):
            made.close()
            self.open.discard(name)
            self.closed.add(name)

    # ------------------------------------------------------------------------------------------- afterwards

    def check(self, engine: RemoteEngine) -> None:
        """Check that each acknowledged operation is there, and no other but the one under way, in part or whole."""
        there = {one.name: one for one in engine.sessions()}
        deed, what = self.under_way or (None, "")
        self._check_sessions({name for name in there if name.startswith(f"{self.name} ")}, deed, what)
        session = there[self.name]
        found = {one.number for one in session.breakpoints if one.when == NEVER}
        assert self.armed <= found, (self.name, "a breakpoint is lost", self.armed - found)
        assert len(found - self.armed) <= (deed == "arm")
        if deed != "move" and self.last is not None:
            self._check_place(engine, session, self.edits + 1 if deed == "edit" else self.edits)

    def _check_sessions(self, found: set[str], deed: Deed | None, what: str) -> None:
        going = {what} if deed == "close" else set()
        coming = {what} if deed == "fork" else set()
        assert not found & self.closed, (self.name, "closed ones are back", found & self.closed)
        assert self.open - going <= found, (self.name, "sessions are lost", self.open - found)
        assert found <= self.open | coming

    def _check_place(self, engine: RemoteEngine, session: SessionDescription, most_edits: int) -> None:
        last = self.last
        if isinstance(last, SessionDescription):
            assert _place(session) == _place(last), (session, last)
            return
        if isinstance(last, Finished):
            assert session.state == "idle", (session, last)
            assert session.tokens == len(last.prompt_tokens) + len(last.tokens)
            return
        assert (session.state, session.stopped_at, session.step) == ("paused", str(last.site), last.step)
        assert session.tokens == len(last.tokens)
        edits = len(engine.session(self.name).stop.edits)
        assert self.edits <= edits <= most_edits

    def begin_anew(self, engine: RemoteEngine) -> None:
        """Drop the forks and breakpoints already checked, so that a round does not check all the rounds before it."""
        for one in engine.sessions():
            if one.name.startswith(f"{self.name} "):
                engine.session(one.name).close()
        for one in engine.session(self.name).breakpoints():
            if one.when == NEVER:
                engine.session(self.name).clear(SITE)
                break
        if self.under_way is not None and self.under_way[0] == "move":
            self.last = engine.session(self.name).describe()
        self.armed.clear()
        self.open.clear()
        self.under_way = None


def _place(session: SessionDescription) -> tuple[object, ...]:
    return session.state, session.tokens, session.stopped_at, session.step
