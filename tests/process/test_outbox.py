"""The outbox: what is posted is taken in order, and a poster can wait until it has left."""

from __future__ import annotations

import threading

from djinn_jupyter.engine.process.sender import Outbox
from djinn_jupyter.wire.replies import SessionClosed
from tests.waiting import SECONDS

EVENT = SessionClosed(session="a")


def test_letting_out_returns_when_what_was_posted_is_sent() -> None:
    outbox = Outbox()
    outbox.post(EVENT)
    gone = threading.Thread(target=outbox.let_out, args=(60.0,))
    gone.start()
    assert outbox.take(woken=True) == [EVENT]
    assert gone.is_alive()  # taken, not yet sent
    outbox.note_sent()
    gone.join(SECONDS)
    assert not gone.is_alive()
    outbox.close()


def test_what_was_posted_while_others_were_sent_is_waited_for() -> None:
    outbox = Outbox()
    outbox.post(EVENT)
    outbox.take(woken=True)
    outbox.post(EVENT)
    outbox.note_sent()
    waits = threading.Thread(target=outbox.let_out, args=(60.0,))
    waits.start()
    assert len(outbox.take(woken=True)) == 1
    assert waits.is_alive()
    outbox.note_sent()
    waits.join(SECONDS)
    assert not waits.is_alive()
    outbox.close()
