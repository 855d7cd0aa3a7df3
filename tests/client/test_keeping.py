"""The verbs of tiers, sleeps and checkpoints, through the codec to an engine in memory and back."""

from __future__ import annotations

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import IllegalMove, UnknownCheckpoint, UsageError
from djinn_jupyter.wire import requests as ask
from tests.magics.double import EngineDouble


@pytest.fixture
def engine() -> RemoteEngine:
    return RemoteEngine(EngineDouble().channel)


def test_a_session_leaves_and_comes_back(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    out = session.swap_out("disk")
    assert (out.direction, out.tier) == ("out", "disk")
    assert session.describe().residency == "disk"
    back = session.swap_in()
    assert (back.direction, back.tier) == ("in", "disk")
    assert session.swap_in() is None


def test_the_weights_leave_and_come_back(engine: RemoteEngine) -> None:
    assert engine.sleep().weights.residency == "asleep"
    assert engine.nap().weights.residency == "asleep"
    assert engine.wake().seconds == 0


def test_a_checkpoint_brings_a_session_back_in_its_own_place_or_beside_it(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    session.breakpoint(4)
    stop = session.run("The capital of France is")
    saved = session.checkpoint("noon")
    assert [kept.name for kept in engine.checkpoints()] == [saved.checkpoint.name] == ["noon"]
    assert isinstance(session.resume(), Finished)
    assert session.restore("noon").stopped_at == stop.site
    assert session.stop.site == stop.site
    with pytest.raises(UsageError, match="already"):
        engine.restore("noon", "paris")
    assert engine.restore("noon", "rome").stop.site == stop.site
    assert engine.restore("noon", "paris", replace=True).name == "paris"
    assert engine.drop_checkpoint("noon") == 1
    with pytest.raises(UnknownCheckpoint):
        engine.restore("noon", "oslo")


def test_a_restore_leaves_the_stops_before_it_behind(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    session.breakpoint(4)
    stop = session.run("The capital of France is")
    session.checkpoint("noon")
    session.restore("noon")
    with pytest.raises(IllegalMove, match="moved on"):
        _ = stop.hidden


def test_without_a_name_this_notebooks_session_is_restored(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "work/oslo.ipynb")
    engine.session("paris").checkpoint("noon")
    assert engine.restore("noon").name == "work/oslo.ipynb"


def test_a_recovered_session_is_accepted(engine: RemoteEngine) -> None:
    session = engine.session("paris")
    assert session.accept_recomputed().exactness == "exact"
    assert isinstance(engine.channel.requests[-1], ask.AcceptRecomputed)
