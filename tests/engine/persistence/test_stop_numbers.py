"""The numbers of stops outlive the process, and a stop that is restored is another."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.dump import dump_session
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.load import load_session
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import pair_of
from tests.engine.persistence.works import PROMPT


@pytest.fixture
def stopped() -> Desk:
    desk, _ = pair_of("llama")
    desk.open()
    desk.stop_at("resid_post.2", "step < 2")
    desk.run(PROMPT)
    desk.edit()
    return desk


def rebuilt(desk: Desk, image: SessionImage) -> Session:
    kept = desk.engine.config.stops_kept
    return load_session(desk.engine.runtime, image, name="again", owner="tester", holder=None, stops_kept=kept)


def test_a_recovered_session_stands_where_it_stood_and_counts_on(stopped: Desk, tmp_path: Path) -> None:
    _, other = pair_of("llama")
    journal(stopped, tmp_path / "alive")
    stopped.engine.persistence.touch("a")
    written(stopped)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    stood = stopped.session().standing
    assert stood is not None
    assert other.session("a").standing == stood
    other.ask(ask.Open(session="a"))
    assert other.edit().stop.edition > stood.edition
    assert other.resume().stop.number > stood.edition
    forget(other)
    forget(stopped)


def test_a_restored_stop_is_another_than_the_one_that_was_kept(stopped: Desk) -> None:
    """The stop was edited since, and will be again."""
    saved = stopped.ask(ask.SaveCheckpoint(session="a", name="numbers", replace=True))
    assert saved.checkpoint.stopped_at
    shown = [stopped.session().standing, stopped.edit().stop]
    stopped.ask(ask.RestoreCheckpoint(session="a", name="numbers", replace=True))
    shown += [stopped.session().standing, stopped.edit().stop]
    assert len(set(shown)) == 4
    stopped.close_all()


def test_an_image_from_before_there_were_numbers_is_given_one(stopped: Desk) -> None:
    image = dump_session(stopped.session(), None)
    assert rebuilt(stopped, image).standing != rebuilt(stopped, msgspec.structs.replace(image, stop=None)).standing
    assert rebuilt(stopped, msgspec.structs.replace(image, stop=None, edition=None)).standing is not None
    stopped.close_all()


@pytest.mark.parametrize(("stop", "edition"), [(-1, 5), (5, 4), (1, 2**60)])
def test_numbers_that_none_was_given_are_refused(stopped: Desk, stop: int, edition: int) -> None:
    image = msgspec.structs.replace(dump_session(stopped.session(), None), stop=stop, edition=edition)
    with pytest.raises(CheckpointRefused, match="contradicts itself"):
        rebuilt(stopped, image)
    stopped.close_all()
