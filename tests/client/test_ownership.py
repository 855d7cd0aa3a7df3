"""Ownership of sessions in Python: what the engine refuses raises, and `force` reaches the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import SessionsWouldSuffer
from djinn_jupyter.wire import requests as ask
from tests.magics.double import EngineDouble
from tests.widgets import samples

ROME = "shared/ada/trips/rome.ipynb"
Deed = Callable[[RemoteEngine, str, bool], object]

DEEDS: dict[str, Deed] = {
    "close it": lambda engine, name, force: engine.session(name, join=True).close(force=force),
    "restore over it": lambda engine, name, force: engine.session(name, join=True).restore("noon", force=force),
    "forget what it holds": lambda engine, name, force: engine.session(name, join=True, fresh=True, force=force),
}
IN_PLACE: Deed = lambda engine, name, force: engine.restore("noon", name, replace=True, force=force)  # noqa: E731


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> EngineDouble:
    """This notebook is paris; oslo is open in another kernel, rome waits for its notebook, bern is ours."""
    monkeypatch.setenv("JPY_SESSION_NAME", "work/paris.ipynb")
    made = EngineDouble()
    engine = RemoteEngine(made.channel)
    engine.session("bern").checkpoint("noon")
    engine.session()
    made.sessions["oslo"] = samples.session("oslo", holder="kernel-2")
    made.sessions[ROME] = samples.session(ROME, holder=None, notebook=ROME)
    made.stops |= {"oslo": None, ROME: None}
    return made


@pytest.mark.parametrize(
    ("name", "whose"),
    [("oslo", "is open in another kernel (kernel-2)"), (ROME, "belongs to the notebook trips/rome.ipynb")],
)
@pytest.mark.parametrize(
    ("deed", "do"), [*DEEDS.items(), ("restore over it", IN_PLACE)], ids=["close", "restore", "fresh", "in place"]
)
def test_what_is_another_notebooks_needs_force(
    double: EngineDouble, name: str, whose: str, deed: str, do: Deed
) -> None:
    engine = RemoteEngine(double.channel)
    before = double.sessions[name]
    with pytest.raises(SessionsWouldSuffer) as refused:
        do(engine, name, False)
    shown = "rome" if name == ROME else name
    assert str(refused.value) == (
        f"Session {shown!r} {whose}; to {deed} all the same, add --force (in Python force=True), or work on a fork of "
        "it (%djinn_fork)."
    )
    assert double.sessions[name] is before
    do(engine, name, True)
    assert double.sessions.get(name) is not before
    asked = [one.force for one in double.channel.requests if isinstance(one, ask.OwnerRequest)]
    assert asked[-1] is True


@pytest.mark.parametrize("name", ["bern", "work/paris.ipynb", "nobodys"])
def test_what_is_ours_or_nobodys_needs_none(double: EngineDouble, name: str) -> None:
    engine = RemoteEngine(double.channel)
    double.sessions["nobodys"] = samples.session("nobodys", holder=None)
    double.stops["nobodys"] = None
    for do in (DEEDS["restore over it"], DEEDS["forget what it holds"], IN_PLACE, DEEDS["close it"]):
        do(engine, name, False)
    assert name not in double.sessions
