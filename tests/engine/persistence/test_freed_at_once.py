"""A closed session frees its tensors at once: no cycle of references and no traceback holds a verb's tensors until
the collector of cycles comes by."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from djinn_jupyter.engine.session.table import own_tensors, past_tensors
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, tokens
from tests.engine.persistence.crashes import journal, written
from tests.engine.persistence.roundtrip import pair_of

pytestmark = pytest.mark.drawn


def refused(desk: Desk, request: ask.Request) -> None:
    with pytest.raises(DjinnError):
        desk.ask(request)


def saved_and_restored(desk: Desk) -> None:
    desk.ask(ask.SaveCheckpoint(session="a", name="kept", replace=True))
    desk.ask(ask.RestoreCheckpoint(session="b", name="kept"))


VERBS: dict[str, Callable[[Desk], object]] = {
    "checkpoint": saved_and_restored,
    "fork": lambda desk: desk.fork("b"),
    "measure": lambda desk: desk.logits_ahead(),
    "look ahead": lambda desk: desk.value("resid_post.6", ahead=True),
    "edit": lambda desk: desk.edit(Scale(factor=0.5)),
    "go back": lambda desk: (desk.resume(), desk.back()),
    "swap": lambda desk: (desk.swap_out(), desk.swap_in()),
    "a refused edit": lambda desk: refused(desk, ask.ApplyEdit(session="a", edit=Scale(factor=float("inf")))),
    "a refused site": lambda desk: refused(desk, ask.Inspect(session="a", site="resid_post.99")),
    "a refused checkpoint": lambda desk: refused(desk, ask.RestoreCheckpoint(session="b", name="no such")),
}


def held(desk: Desk) -> list[weakref.ref[torch.Tensor]]:
    """The tensors of its sessions, by references that do not hold them."""
    sessions = desk.engine.sessions.values()
    return [weakref.ref(t) for one in sessions for t in (*own_tensors(one), *past_tensors(one))]


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk at a stop, while no collector of cycles comes by."""
    desk, _ = pair_of("llama")
    gc.collect()
    gc.disable()
    yield desk
    gc.enable()


def stopped(desk: Desk) -> None:
    desk.open()
    desk.stop_at("resid_post.4")
    desk.run(tokens(9), 2)


def closed_and_freed(desk: Desk) -> None:
    tensors = held(desk)
    assert tensors
    desk.close_all()
    assert [alive.shape for one in tensors if (alive := one()) is not None] == []
    assert list(desk.engine.storage_table) == []


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_made_is_freed_when_the_session_is_closed(desk: Desk, verb: str) -> None:
    stopped(desk)
    VERBS[verb](desk)
    closed_and_freed(desk)


@pytest.mark.parametrize("end", ["close", "abandon", "go on"])
def test_what_a_journal_wrote_is_freed_when_the_session_is_closed(desk: Desk, end: str, tmp_path: Path) -> None:
    """An ended journal holds nothing of the sessions whose images it leaves, a working one nothing of a closed one."""
    persistence = desk.engine.persistence
    journal(desk, tmp_path)
    stopped(desk)
    written(desk)
    if end == "close":
        persistence.close(desk.engine.sessions)
    elif end == "abandon":
        persistence.abandon()
    closed_and_freed(desk)
    assert desk.engine.tiers.disk.places == 0
    persistence.close(desk.engine.sessions)
