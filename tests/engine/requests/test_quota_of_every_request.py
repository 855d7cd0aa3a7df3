"""No request of the wire's own list makes a session beyond a person's quota; nor do several at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.people import Quota
from djinn_jupyter.wire.replies import CheckpointSaved, Failed, Opened, ProvenanceRead, SentAway
from tests.engine.cases import KINDS
from tests.engine.desk import build_desk, tokens
from tests.engine.requests.house import House
from tests.families import build
from tests.wire import values

MAKERS: Final = {ask.Open, ask.Fork, ask.RestoreCheckpoint, ask.TakeIn}
ENDING: Final = {ask.Goodbye, ask.DropCheckpoint, ask.SettleMove, ask.SendAway}  # what the others need
(KEPT,), (MOVE,) = values.WORDS["name"], values.WORDS["move"]  # by which the requests of any kind name them
OTHER_MOVE: Final = MOVE[::-1]


class Quoted:
    """Of anna: sessions, a checkpoint, and two moves that wait to be taken in."""

    def __init__(self) -> None:
        self.house, self.quota = House(build_desk(build("llama"))), Quota()
        self.desk = self.house.desk
        self.desk.engine.apply_owner_budgets(lambda person: self.quota)
        self.house.ask(None, protocol.hello(holder="k", user="root"))

    def ask(self, request: Any) -> Any:
        return self.house.ask("anna", request)

    def begin(self) -> None:
        self.quota = Quota()
        self.house.greet("anna", "hers")
        for name in ("a", "b", "c"):
            assert isinstance(self.ask(ask.Open(session=name)), Opened)
            self.ask(ask.Run(session=name, tokens=tokens(5), max_new_tokens=1, ignore_eos=True))
        assert isinstance(self.ask(ask.SaveCheckpoint(session="a", name=KEPT, replace=True)), CheckpointSaved)
        here = self.ask(ask.ReadProvenance())
        assert isinstance(here, ProvenanceRead)
        for name, move in (("b", MOVE), ("c", OTHER_MOVE)):
            assert isinstance(
                self.ask(ask.SendAway(session=name, to=here.provenance, move=move, person=here.person)), SentAway
            )

    def end(self) -> None:
        self.house.greet("anna", "hers")  # again after a Goodbye
        for name, move in (("b", MOVE), ("c", OTHER_MOVE)):
            self.ask(ask.SettleMove(session=name, move=move))
            self.desk.engine.persistence.moves.folder.forget(move)
        self.desk.settle()
        self.desk.close_all()

    @property
    def count(self) -> int:
        return sum(name.startswith("anna@") for name in self.desk.engine.sessions)

    def grows_by(self, kind: type) -> bool:
        """True where a request of that kind, with any ordinary values, makes one session more."""
        grown = False
        for fields in values.requests(kind, "ordinary"):
            for name in ("a", "new") if "session" in kind.__struct_fields__ else (None,):  # type: ignore[attr-defined]
                before = self.count
                self._asked(kind, fields if name is None else {**fields, "session": name})
                grown |= self.count > before
        return grown

    def _asked(self, kind: type, fields: dict[str, Any]) -> None:
        try:
            request = kind(**fields)
        except (DjinnError, TypeError):
            return
        self.ask(request)


@pytest.fixture(scope="module")
def made() -> Quoted:
    return Quoted()


@pytest.fixture
def quoted(made: Quoted) -> Iterator[Quoted]:
    made.begin()
    yield made
    made.end()


@pytest.mark.parametrize("limited", [True, False])
def test_no_request_makes_a_session_beyond_the_quota(quoted: Quoted, limited: bool) -> None:
    """Without a quota those that make sessions are found to make one, so that they were really asked."""
    for kind in KINDS:
        quoted.quota = Quota(sessions=quoted.count) if limited else Quota()
        before = quoted.count
        assert quoted.grows_by(kind) == (kind in MAKERS and not limited), kind
        if kind in MAKERS or kind in ENDING or quoted.count != before:
            quoted.end()
            quoted.begin()


def test_nor_do_several_that_are_under_way_at_once(quoted: Quoted) -> None:
    quoted.quota = Quota(sessions=quoted.count + 1)
    replies: list[Any] = []
    several = (
        ask.TakeIn(session="d", move=MOVE),
        ask.TakeIn(session="e", move=OTHER_MOVE),
        ask.RestoreCheckpoint(session="f", name=KEPT),
        ask.Open(session="g"),
    )
    for request in several:
        quoted.house.clients.receive(b"anna", request, replies.append, "anna")
    while len(replies) < len(several):
        quoted.desk.engine.tick()
    assert [type(reply) for reply in replies].count(Opened) == 1
    assert {reply.code for reply in replies if isinstance(reply, Failed)} == {"OverQuota"}
