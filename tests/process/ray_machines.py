"""A real Ray cluster on addresses of this machine's loopback: `make cluster-test` installs Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.cli.main import main
from djinn_jupyter.link.registry import running_engines
from tests.waiting import until

ROOT = Path(__file__).parents[2]
MACHINES = ("127.0.0.3", "127.0.0.4")
STARTS = 8  # Ray gives a machine up that has not begun within 30 s, as on cores that are busy
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: make cluster-test")


class Machines:
    """A cluster whose head has no room for an engine, and whose other machines have room for one each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._size = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        head = {"num_cpus": 0, "node_ip_address": "127.0.0.2", **self._size}
        self._cluster = begun(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.address = self._cluster.address
        self._up = {address: begun(lambda at=address: self._add(at)) for address in MACHINES}

    def kill(self, address: str) -> None:
        self._cluster.remove_node(self._up.pop(address), allow_graceful=False)

    def refill(self) -> None:
        """Have two machines that take engines, in the place of those that were killed or drained."""
        import ray

        from djinn_jupyter.remote.cluster.placement import attached

        with attached():
            alive = {one["NodeManagerAddress"] for one in ray.nodes() if one["Alive"]}
        for address in MACHINES:
            if address not in alive:
                self._up.pop(address, None)
                self._up[address] = begun(lambda at=address: self._add(at))

    def add(self, address: str, cpus: int) -> None:
        """Add a machine with room for so many engines."""
        self._up[address] = begun(lambda: self._add(address, cpus))

    def end(self) -> None:
        self._cluster.shutdown()

    def _add(self, address: str, cpus: int = 1) -> Any:
        return self._cluster.add_node(num_cpus=cpus, node_ip_address=address, **self._size)


def begun(start: Any) -> Any:
    for tried in range(STARTS):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error) or tried == STARTS - 1:
                raise
    raise AssertionError


@contextmanager
def cluster(home: Path) -> Iterator[Machines]:
    """Yield a cluster that this process uses, whose user, anna, has no other data than those below `home`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("JUPYTER_DATA_DIR", str(home / "data"))
        machines = Machines()
        patch.setenv("RAY_ADDRESS", machines.address)
        assert main(["key", "new", "anna"]) == 0
        try:
            yield machines
        finally:
            loading._channels.close()
            machines.end()
            until(lambda: not running_engines(), "the end of the engines")


def at(engine: RemoteEngine) -> str:
    """Return the address of an engine's machine."""
    return engine.entry.commands.removeprefix("tcp://").partition(":")[0]


def drained(placed: RemoteEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """Drain the machine of an engine of the demo model, which goes on on the other one."""
    before = at(placed)
    capsys.readouterr()
    assert main(["cluster", "drain", before]) == 0
    said = capsys.readouterr().out
    assert f"Ray places nothing more on {before}." in said
    after = at(dj.load("demo", device="cpu", at="cluster"))
    assert after != before
    assert f"at tcp://{after}:" in said
