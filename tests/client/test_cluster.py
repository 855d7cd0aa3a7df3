"""An engine of a cluster, from the side of the notebook; tests/process/test_cluster.py has a real cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

import msgspec
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli.main import main
from djinn_jupyter.errors import EngineUnavailable, MissingDependency
from djinn_jupyter.link.registry import refusal_of
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.remote import route as routes
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.remote.route import route_to
from djinn_jupyter.settings import Identity
from djinn_jupyter.wire.registry import Entry
from tests.magics.double import EngineDouble


async def test_an_engine_is_looked_for_where_it_was_and_then_the_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = msgspec.structs.replace(entry_at(read_address("10.0.0.3:7001"), None), in_cluster=True)
    after = msgspec.structs.replace(before, commands="tcp://10.0.0.4:7002")
    asked: list[Entry] = []
    monkeypatch.setattr(routes, "entry_anew", lambda entry: asked.append(entry) or after)
    route = route_to(before)
    await route.mend()
    assert (route.entry, asked) == (before, [])
    await route.mend()
    assert (route.entry, asked) == (after, [before])
    named = msgspec.structs.replace(before, identity=Identity(model="demo", copy=2))
    assert route.reached(named) == msgspec.structs.replace(named, commands=after.commands)


@pytest.mark.parametrize(
    ("where", "asked"),
    [("gpu-3", "a machine"), ("10.0.0.3", "a machine"), ("gpu-3:7001", "an address"), ("tcp://gpu-3", "an address")],
)
def test_a_name_without_a_port_is_a_machine_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, where: str, asked: str
) -> None:
    class Asked(Exception):
        pass

    def by(what: str) -> Callable[..., Entry]:
        def ask(*told: object, **more: object) -> Entry:
            assert where in told
            raise Asked(what)

        return ask

    entry = msgspec.structs.replace(entry_at(read_address("10.0.0.3:7001"), None), in_cluster=True)
    monkeypatch.setattr(loading, "entry_on", by("a machine"))
    monkeypatch.setattr(loading, "connect", by("an address"))
    with pytest.raises(Asked, match=asked):
        dj.beside(RemoteEngine(EngineDouble().channel, entry), where)
    with pytest.raises(Asked, match="an address"):
        dj.beside(RemoteEngine(EngineDouble().channel, msgspec.structs.replace(entry, in_cluster=False)), where)


def test_an_engine_of_another_version_names_the_way_to_end_it_there() -> None:
    """A copy by its name in the list: by its model alone another engine would be ended."""
    there = msgspec.structs.replace(
        entry_at(read_address("10.0.0.3:7001"), None),
        protocol="another",
        in_cluster=True,
        identity=Identity(model="demo", copy=2),
    )
    assert "end it with `djinn cluster stop 'demo (copy 2)'`" in (refusal_of(there) or "")


def test_a_copy_that_ray_has_not_placed_is_taken_back_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="no Ray here: make cluster-test")
    from djinn_jupyter.remote.cluster import placement

    monkeypatch.setitem(vars(placement), "PLACE_SECONDS", 0.0)
    waiting = placement.Placed(identity=Identity(model="demo", copy=2), actor=None)
    with pytest.raises(EngineUnavailable, match=r"`djinn cluster stop 'demo \(copy 2\)'` takes it back\."):
        placement.await_entry(waiting, None, StartCallbacks(line=print, second=print))


def test_without_ray_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "djinn_jupyter.remote.cluster.verbs", raising=False)
    monkeypatch.delitem(sys.modules, "djinn_jupyter.remote.cluster.placement", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["cluster", "list"]) == 1
    assert capsys.readouterr().err == "djinn: A cluster needs Ray: pip install 'djinn-jupyter[cluster]'.\n"


@pytest.mark.processes
def test_a_load_without_a_cluster_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that asks tells its error; it has a key, so that is not the reason."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:1")
    if find_spec("ray") is None:
        with pytest.raises(MissingDependency, match=r"pip install 'djinn-jupyter\[cluster\]'"):
            dj.load("demo", at="cluster")
    else:
        assert main(["key", "new", "anna"]) == 0
        with pytest.raises(EngineUnavailable, match=r"No Ray cluster answers at 127.0.0.9:1"):
            dj.load("demo", at="cluster")
