"""`djinn cluster drain` where the other machines are full, without Ray's processes; tests/process/test_cluster.py has a
real cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire.registry import Entry, Ready

pytest.importorskip("ray", reason="no Ray here: make cluster-test")
from djinn_jupyter.remote.cluster import machines, verbs
from djinn_jupyter.remote.cluster import machines as fingerprints
from djinn_jupyter.remote.cluster import machines as vacancy

SAME = {"processor": "a processor"}
TOLD = StartCallbacks(line=print, second=print)


def machine(number: int, **has: float) -> dict[str, Any]:
    names = {"NodeManagerHostname": f"gpu-{number}", "NodeManagerAddress": f"10.0.0.{number}"}
    return {"NodeID": f"gpu-{number}", "Alive": True, "Resources": has, **names}


def entry_of(model: str) -> Entry:
    there = entry_at(read_address("10.0.0.5:7001"), None)
    return msgspec.structs.replace(there, identity=Identity(model=model), options=Options(shared_journal="/lab"))


@dataclass
class Engine:
    """An engine on gpu-3; `left` is whether it was ended there."""

    identity: Identity
    wanted: Mapping[str, float]
    left: bool = False

    def machine(self) -> str:
        return "gpu-3"

    def notice(self) -> Ready:
        return Ready(entry=entry_of(self.identity.model))

    def needs(self) -> dict[str, float]:
        return dict(self.wanted)

    def fingerprint(self) -> dict[str, str]:
        return SAME

    def leave(self) -> None:
        self.left = True


@pytest.fixture
def small() -> Engine:
    return Engine(Identity(model="small"), {"CPU": 1.0})


@pytest.fixture
def large() -> Engine:
    return Engine(Identity(model="large"), {"CPU": 2.0, "GPU": 1.0, "memory": 2.0**31})


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, small: Engine, large: Engine) -> dict[str, dict[str, float]]:
    """What gpu-4 and gpu-5 have that nothing uses; gpu-6 is drained and empty."""
    whole = {"CPU": 4.0, "GPU": 1.0, "memory": 2.0**33}
    left = {"gpu-4": {"CPU": 1.0, "GPU": 1.0, "memory": 2.0**30}, "gpu-5": {}, "gpu-6": whole}

    @contextmanager
    def held(needs: Mapping[str, float]) -> Iterator[bool]:
        open_ = [name for name in left if name not in machines.closed()]
        yield any(all(left[name].get(kind, 0) >= much for kind, much in needs.items()) for name in open_)

    monkeypatch.setitem(vars(machines), "alive", lambda: [machine(number, **whole) for number in (3, 4, 5, 6)])
    monkeypatch.setitem(vars(machines), "closed", lambda: {"gpu-3", "gpu-6"})
    monkeypatch.setitem(vars(machines), "free", lambda: left)
    monkeypatch.setitem(vars(fingerprints), "_asked", lambda other: SAME)
    monkeypatch.setitem(vars(verbs), "placed", lambda: [small, large])
    monkeypatch.setitem(vars(verbs), "_close", lambda machine: None)
    monkeypatch.setitem(vars(verbs), "held", held)
    monkeypatch.setitem(vars(verbs), "await_entry", lambda one, needs, told: entry_of(one.identity.model))
    return left


def test_an_engine_without_a_free_place_serves_on_and_the_others_go(
    free: dict[str, dict[str, float]], small: Engine, large: Engine
) -> None:
    """The largest is asked for first: a small one that took its place would have it stay for nothing."""
    said = {str(one.identity): state for one, state in verbs.drained("gpu-3", TOLD)}
    assert said["large"] == (
        "stays and serves on, because it needs 2 CPUs, 1 GPU, 2.00 GiB, and no other machine has that free (gpu-4 "
        "(10.0.0.4) has 1 CPU, 1 GPU, 1.00 GiB, gpu-5 (10.0.0.5) has 0 CPUs, 0 GPUs, 0 B): end something there or add "
        "a machine, then drain 10.0.0.3 again"
    )
    assert said["small"].startswith("is on ")
    assert list(said) == ["large", "small"]
    assert (large.left, small.left) == (False, True)


def test_both_go_where_both_find_a_place(free: dict[str, dict[str, float]], small: Engine, large: Engine) -> None:
    free["gpu-4"]["memory"] = free["gpu-4"]["CPU"] = 2.0**33
    assert all(state.startswith("is on ") for _, state in verbs.drained("gpu-3", TOLD))
    assert large.left
    assert small.left


def test_of_many_full_machines_a_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(machines), "free", lambda: {})
    said = vacancy.spell_free([machine(number, CPU=1.0) for number in range(40)], {"CPU": 1.0})
    assert said.endswith("gpu-3 (10.0.0.3) has 0 CPUs, and 36 more are full too")
