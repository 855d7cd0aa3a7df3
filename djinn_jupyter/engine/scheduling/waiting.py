"""Requests queued (as `Letter`) until their session can be worked on, in the order in which they came."""

from __future__ import annotations

from collections import deque

from djinn_jupyter.engine.scheduling.mailbox import Letter
from djinn_jupyter.engine.session.session import Session


class Waiting:
    """Keyed by session, not by name: a session that is being restored is not the one that it will replace."""

    def __init__(self) -> None:
        self._letters: dict[int, tuple[Session, deque[Letter]]] = {}

    def __contains__(self, session: object) -> bool:
        """True where a request is queued for the session."""
        return id(session) in self._letters

    def of(self, session: Session) -> tuple[Letter, ...]:
        return tuple(self._of(session))

    def first(self, session: Session) -> Letter:
        return self._of(session)[0]

    def add(self, session: Session, letter: Letter) -> None:
        self._of(session, keep=True).append(letter)

    def put_back(self, session: Session, letter: Letter) -> None:
        """Put the request back at the head of the queue."""
        self._of(session, keep=True).appendleft(letter)

    def take(self, session: Session) -> Letter:
        """Remove and return the first request."""
        letter = self.first(session)
        self.remove(session, letter)
        return letter

    def remove(self, session: Session, letter: Letter) -> None:
        """Remove the request if it is queued."""
        letters = self._of(session)
        if letter in letters:
            letters.remove(letter)
        if not letters:
            self._letters.pop(id(session), None)

    def _of(self, session: Session, *, keep: bool = False) -> deque[Letter]:
        _, letters = self._letters.get(id(session), (session, deque[Letter]()))
        if keep:
            self._letters[id(session)] = (session, letters)
        return letters
